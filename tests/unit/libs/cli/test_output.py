import json
from datetime import UTC, datetime

import pytest

from isthmus.deployer.v1 import device_pb2
from isthmus.device_agent.v1 import device_agent_pb2
from libs.cli.output import Output, counted, human_bytes, human_seconds, human_time


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**3, "5.0 GiB"), (2**60, "1048576.0 TiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4.2 ms"), (1.25, "1.2 s"), (95, "1 m 35 s"), (7300, "2 h 1 m"), (90 * 3600, "3 d 18 h")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_an_unset_time_is_a_dash() -> None:
    assert human_time(datetime.fromtimestamp(0, UTC)) == "-"
    assert human_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04:05Z"


def test_json_of_a_message_has_its_field_names_and_zero_values(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).message(device_pb2.Device(name="tenants/t/devices/d"), [])
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "tenants/t/devices/d"
    assert shown["revoked"] is False
    assert shown["reported"] == []


def test_a_table_shows_every_cell_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 120
    Output().messages([device_pb2.Device()], ("NAME", "NOTE"), [("d", long)])
    assert long in capsys.readouterr().out


def test_an_empty_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Output().messages([], ("NAME",), [])
    assert capsys.readouterr().out == "(none)\n"
    Output(as_json=True).messages([], ("NAME",), [])
    assert json.loads(capsys.readouterr().out) == []


def test_progress_goes_to_stderr_and_only_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    Output().note("half way")
    Output(as_json=True).note("half way")
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", "half way\n")


def test_large_integers_are_numbers_as_far_as_every_reader_has_them_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = device_agent_pb2.GetStatusResponse(root_version=7)
    status.counters.event_count = 2**53 - 1
    status.counters.event_bytes = 2**53
    status.tasks.add(task="t", success_count=5)
    Output(as_json=True).message(status, [], more={"beside": 1})
    shown = json.loads(capsys.readouterr().out)
    assert shown["root_version"] == 7
    assert shown["counters"]["event_count"] == 2**53 - 1
    assert shown["counters"]["event_bytes"] == str(2**53)
    assert shown["tasks"][0]["success_count"] == 5
    assert shown["beside"] == 1


def test_times_in_json_stay_text(capsys: pytest.CaptureFixture[str]) -> None:
    result = device_agent_pb2.WatchResultsResponse(sequence=2)
    result.event_time.FromSeconds(1_700_000_000)
    Output(as_json=True).messages([result], (), [])
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["sequence"], shown["event_time"]) == (2, "2023-11-14T22:13:20Z")


@pytest.mark.parametrize("cell", ["float32[batch, 2]", "[bold]x[/bold]", ":warning: [/]", "[link=x]y"])
def test_what_looks_like_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], cell: str) -> None:
    Output().table(("WHAT",), [(cell,)])
    Output().message(device_pb2.Device(), [("what", cell)])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["WHAT", cell, f"what  {cell}"]


def test_a_long_word_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    word = "x" * 500
    Output().table(("A", "B"), [(word, "b")])
    shown = capsys.readouterr().out
    assert shown.count("x") == 500
    assert "…" not in shown


def test_a_narrow_table_breaks_lines_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "_width", staticmethod(lambda: 52))
    row = ("click-ranker-large", "ROLLED_BACK", "most goodput_rps there is", 7)
    Output().table(("EXPERIMENT", "APPLIED", "WANTED", "MADE BY US"), [row])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 52
    words = " ".join(lines).split()
    for word in (
        "click-ranker-large",
        "ROLLED_BACK",
        "goodput_rps",
        "EXPERIMENT",
        "APPLIED",
        "WANTED",
        "MADE",
    ):
        assert word in words


def test_a_table_that_has_no_room_still_has_whole_headings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "_width", staticmethod(lambda: 30))
    Output().table(("EXPERIMENT", "APPLIED"), [("x" * 50, "y" * 50)])
    out = capsys.readouterr().out
    assert out.split()[:2] == ["EXPERIMENT", "APPLIED"]
    assert (out.count("x"), out.count("y")) == (50, 50)


NASTY = "x\x1b[31m\x9b\x7f\x00\n\u202ey\u2028z"
PLAIN = "x\\x1b[31m\\x9b\\x7f\\x00\\n\\u202ey\\u2028z"


def test_control_characters_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.table((NASTY,), [(NASTY,), ((NASTY, "second line"),)], title=NASTY)
    output.rows([(NASTY, NASTY)])
    output.values({}, NASTY)
    seen = capsys.readouterr().out
    lines = [line.split() for line in seen.splitlines()]
    assert lines == [[PLAIN], [PLAIN], [PLAIN], [PLAIN], ["second", "line"], [PLAIN, PLAIN], [PLAIN]]
    output.note(NASTY)
    output.remark(NASTY)
    output.error("R", f"{NASTY}\tand more")
    told = PLAIN.replace("\\n", "\n  ")
    assert capsys.readouterr().err == f"{told}\n{told}\nerror: {told}\tand more\n"


def test_json_has_escapes_of_its_own_for_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.values({NASTY: [NASTY, "ÿ"]})
    output.line({NASTY: NASTY})
    seen = capsys.readouterr().out
    assert "ÿ" in seen
    assert not any(
        character in seen for character in set(NASTY.replace("\n", "")) & set("\x1b\x9b\x7f\x00\u202e\u2028")
    )
    found, end = json.JSONDecoder().raw_decode(seen)
    assert found == {NASTY: [NASTY, "ÿ"]}
    assert json.loads(seen[end:]) == {NASTY: NASTY}
    output.error("R", NASTY)
    assert "\x9b" not in (err := capsys.readouterr().err)
    assert json.loads(err)["error"]["message"] == NASTY


def test_our_own_headings_stay_bold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    Output().table(("NAME",), [("a\x1b[31m",)])
    seen = capsys.readouterr().out
    assert seen.count("\x1b[1m") == 1
    assert "\x1b[31m" not in seen
    assert "a\\x1b[31m" in seen


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1200, "1,200 nodes")]
)
def test_one_of_a_thing_is_one_thing(count: int, text: str) -> None:
    assert counted(count, "node") == text
