"""`isthmus task try`: a task over recorded events, in the agent's own parts, with no cloud and no keys."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from libs.cli.main import main
from libs.runtime.codec import encode
from libs.runtime.testing import linear_plan
from services.device_agent import trying

SCRIPT = """
def run(context):
    n = context.events[-1].fields["n"]
    context.log(f"n is {n}")
    context.send("out", {"n": n})
    context.send("out", {"n": n, "user": context.events[-1].user})
    if n == context.resource("bad.txt").read_text().strip():
        raise ValueError("bad on purpose")
    return {"n": n, "seen": context.features["seen"]["count"]}
"""
TASK = {
    "task": "trial",
    "version": "1.0.0",
    "phases": [{"kind": "post", "script": "run.py", "entry_point": "run"}],
    "resources": [{"path": "bad.txt", "sharing": "shared"}],
    "trigger": {"sequence": [{"event": "enter"}, {"event": "go"}]},
    "pipeline": {
        "seen": {
            "source": {"event": "*"},
            "ops": [{"window": {"size": "1d", "max_events": 100}}, {"reduce": {"count": {"fn": "count"}}}],
        }
    },
    "uploads": {"out": {"n": "string"}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task whose runs fail for the value that bad.txt holds."""
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "task.json").write_text(json.dumps(TASK))
    (folder / "run.py").write_text(SCRIPT)
    (folder / "bad.txt").write_text("nothing")
    return folder


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Five times enter and go, by two users."""
    lines = []
    for number in range(5):
        user = f"u{number % 2}"
        for type_ in ("enter", "go"):
            time_s = 1_600_000_000 + len(lines)
            fields = {"n": f"n{number}"}
            lines.append(json.dumps({"type": type_, "user": user, "time_s": time_s, "fields": fields}))
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([*lines, ""]))
    return path


def tried(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict], str]:
    status = main(["task", "try", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


def test_a_model_runs_between_the_scripts(folder, events, capsys):
    task = dict(TASK, phases=[
        {"kind": "pre", "script": "run.py"},
        {"kind": "model", "plan": "models/click.plan"},
        {"kind": "post", "script": "run.py"},
    ])  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "run.py").write_text(
        "def pre(context): return {'x': [[len(context.events[-1].fields), 0.0]]}\n"
        "def post(context, outputs): return {'p': round(float(outputs['probability'][0]), 4)}\n"
    )
    (folder / "models").mkdir()
    (folder / "models" / "click.plan").write_bytes(encode(linear_plan([1.0, -1.0])))
    status, (*runs, summary), _ = tried(capsys, folder, "--events", events)
    assert status == 0
    assert [run["result"] for run in runs] == [{"p": 0.7311}] * 5
    assert summary["failure_count"] == 0


def test_every_run_and_a_summary(folder, events, capsys):
    status, (*runs, summary), _ = tried(capsys, folder, "--events", events)
    assert status == 0
    # Features see what a device would have stored by then: of the user's own events.
    assert [run["result"] for run in runs] == [
        {"n": f"n{number}", "seen": 2 * (number // 2 + 1)} for number in range(5)
    ]
    sent, refused = runs[0]["frames"]
    assert sent == {"stream": "out", "payload": {"n": "n0"}}
    assert (refused["refusal"], "user" in refused["message"]) == ("FIELD_UNDECLARED", True)
    assert runs[0]["logs"] == ["n is n0"]
    assert runs[0]["user"] == "u0"
    assert summary["p50_ms"] > 0
    expected = {
        "event_count": 10,
        "bad_line_count": 0,
        "trigger_count": 5,
        "run_count": 5,
        "failure_count": 0,
        "frame_count": 5,
        "refused_frame_count": 5,
        "frame_bytes": 5 * len('{"n":"n0"}'),
        "given_up": False,
    }
    assert {name: summary[name] for name in expected} == expected
    assert summary["problems"] == []


def test_a_line_that_is_no_event_is_named_and_makes_it_exit_1(folder, events, capsys):
    with events.open("a") as file:
        file.write("no event\n")
    status, (*runs, summary), err = tried(capsys, folder, "--events", events)
    assert status == 1
    assert (len(runs), summary["bad_line_count"], summary["failure_count"]) == (5, 1, 0)
    assert "line 11" in summary["problems"][0]
    error = json.loads(err)["error"]
    assert error["reason"] == "BAD_LINES"
    assert "publishing refuses them" in error["message"]
    # Whose script runs the agent's own trial sees it too.
    flags = ["--task-dir", str(folder), "--events-file", str(events)]
    assert trying.main(flags, {}) == 1


def test_a_run_that_fails_is_shown_with_its_text_and_makes_it_exit_1(folder, events, capsys):
    (folder / "bad.txt").write_text("n3\n")
    status, (*runs, summary), err = tried(capsys, folder, "--events", events)
    assert status == 1
    assert [bool(run["failure"]) for run in runs] == [False, False, False, True, False]
    assert runs[3]["failure"]["reason"] == "EXCEPTION"
    assert "ValueError: bad on purpose" in runs[3]["failure"]["message"]
    assert runs[3]["frames"] == []
    assert (summary["failure_count"], summary["frame_count"]) == (1, 4)
    assert json.loads(err)["error"]["message"] == "1 of 5 runs failed"


def test_people_get_lines_and_a_table(folder, events, capsys):
    (folder / "bad.txt").write_text("n3")
    assert main(["task", "try", str(folder), "--events", str(events)]) == 1
    out, err = capsys.readouterr()
    for text in (
        '{"n": "n0", "seen": 2}',
        'sent out: {"n": "n0"}',
        "refused FIELD_UNDECLARED",
        "log: n is n3",
        "FAILED EXCEPTION",
        "ValueError: bad on purpose",
        "EVENTS",
    ):
        assert text in out
    assert "1 of 5 runs failed" in err


def test_a_limit_and_the_standard_input(folder, events, capfd):
    with events.open() as file:
        process = subprocess.run(
            [
                sys.executable,
                "-m",
                "libs.cli.main",
                "task",
                "try",
                folder,
                "--events",
                "-",
                "--limit",
                "4",
                "--json",
            ],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert (summary["event_count"], summary["run_count"], summary["bad_line_count"]) == (4, 2, 0)


def test_what_a_device_would_give_up_is_given_up(folder, events, capsys):
    (folder / "run.py").write_text("def run(context):\n    return 1 / 0\n")
    status, (*runs, summary), _ = tried(capsys, folder, "--events", events)
    assert status == 1
    assert summary["given_up"]
    assert 3 <= len(runs) <= 5
    assert summary["trigger_count"] >= len(runs)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        (
            lambda folder, events: (folder / "run.py").write_text("import nothing_of_it\n" + SCRIPT),
            1,
            "nothing_of_it",
        ),
        (lambda folder, events: (folder / "bad.txt").unlink(), 4, "bad.txt"),
        (lambda folder, events: (folder / "task.json").write_text("{"), 2, "task.json"),
        (lambda folder, events: events.write_text("no event\n"), 2, "line 1, column 1"),
        (lambda folder, events: events.unlink(), 4, "No such file or directory"),
        (
            lambda folder, events: (folder / "task.json").write_text(
                json.dumps(TASK | {"python_versions": ["3.1"]})
            ),
            1,
            "3.1",
        ),
    ],
)
def test_what_cannot_be_tried_is_told(folder, events, capsys, change, status, says):
    change(folder, events)
    found, lines, err = tried(capsys, folder, "--events", events)
    assert (found, lines) == (status, [])
    assert says in err
    assert "Traceback" not in err or "nothing_of_it" in err


def test_events_that_trigger_nothing_are_no_fault(folder, events, capsys):
    events.write_text(json.dumps({"type": "other", "user": "u", "time_s": 1.0, "fields": {}}) + "\n")
    assert main(["task", "try", str(folder), "--events", str(events)]) == 0
    assert "no event completed the trigger" in capsys.readouterr().out


def test_it_ends_on_ctrl_c_and_leaves_nothing_behind(folder, events, tmp_path):
    (folder / "run.py").write_text("import time\ndef run(context):\n    time.sleep(50)\n    return {}\n")
    (folder / "task.json").write_text(json.dumps(TASK | {"limits": {"wall_time": "60s"}}))
    scratch = Path(tempfile.mkdtemp(prefix="try-", dir="/tmp"))
    process = subprocess.Popen(
        [sys.executable, "-m", "libs.cli.main", "task", "try", folder, "--events", events],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not list(scratch.glob("isthmus-try-*/state/agent.sock")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in err, err
        assert list(scratch.iterdir()) == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        scratch.rmdir()


ASKS = """
def run(context):
    n = int(context.events[-1].fields["n"][1:])
    found = context.ask("ranker", {"item": n, "history": list(range(20))})
    if n == 4:
        context.ask("rankr", {"item": n})
    return {"found": found}
"""


def test_what_was_asked_is_shown_and_nothing_answers(folder, events, capsys):
    endpoints = {"ranker": {"item": "INT64", "history": "FP32"}}
    (folder / "task.json").write_text(json.dumps(TASK | {"endpoints": endpoints}))
    (folder / "run.py").write_text(ASKS)
    status, lines, _ = tried(capsys, folder, "--events", events)
    *runs, summary = lines
    assert status == 1  # the last one asked for a model that isn't declared
    assert [run["result"] for run in runs[:4]] == [{"found": None}] * 4
    assert runs[1]["asks"] == [
        {
            "model": "ranker",
            "inputs": {
                "item": {"datatype": "INT64", "shape": [], "first": [1]},
                "history": {"datatype": "FP32", "shape": [20], "first": [float(n) for n in range(16)]},
            },
            "bytes": 88,
            "refusal": None,
            "why": "not connected to the cloud",
        }
    ]
    assert runs[1]["logs"] == ["ask ranker: not connected to the cloud"]
    assert runs[4]["failure"]["reason"] == "BAD_REQUEST"
    assert "did you mean 'ranker'?" in runs[4]["asks"][1]["refusal"]
    assert (summary["asked_count"], summary["asked_bytes"]) == (5, 440)
    assert main(["task", "try", str(folder), "--events", str(events)]) == 1
    shown = capsys.readouterr().out
    assert "asked ranker: item INT64[] 1 · history FP32[20] 0.0 1.0 2.0" in shown
    assert "refused model 'rankr' is not declared" in shown
