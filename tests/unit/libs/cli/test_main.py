"""The command as a person meets it: misspelt names, wrong settings, exit codes."""

import json
import os
from pathlib import Path

import pytest

from libs.cli.main import main


@pytest.fixture(autouse=True)
def nobodys_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tester's own settings out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (
        "ISTHMUS_HOME",
        "ISTHMUS_ADDRESS",
        "ISTHMUS_API_KEY",
        "ISTHMUS_API_KEY_FILE",
        "ISTHMUS_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_help_lists_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for group in (
        "agent",
        "audit",
        "blob",
        "device",
        "key",
        "login",
        "release",
        "task",
        "tenant",
        "trust",
        "tunnel",
    ):
        assert f"\n  {group} " in shown


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["relaese"], "release"), (["release", "crate"], "create"), (["device", "tokens"], "token")],
)
def test_a_misspelt_command_gets_a_suggestion(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_a_misspelt_flag_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "create", "a@1", "--step", "10%"]) == 2
    assert "--steps" in capsys.readouterr().err


def test_without_a_key_it_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "list"]) == 3
    assert "make up" in capsys.readouterr().err


def test_errors_are_json_when_asked_for_anywhere_on_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "list", "--json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"]["reason"] == "NO_API_KEY"
    assert main(["releases", "--json"]) == 2
    assert "did you mean" in json.loads(capsys.readouterr().err)["error"]["message"]


def test_a_gateway_that_isnt_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_API_KEY", "isk_a_b")
    # Port 9 (discard) on the loopback: nothing listens there.
    assert main(["--gateway", "127.0.0.1:9", "--timeout", "5", "tenant", "list"]) == 5
    assert "127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "gateway",
    ["gateway.example:7400", "127.0.0.1.example:7400", "dns:///127.example:7400", "localhost.example:1"],
)
def test_a_key_never_goes_out_in_the_clear(
    gateway: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_API_KEY", "isk_a_b")
    assert main(["--gateway", gateway, "tenant", "list"]) == 2
    assert "--ca-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "line 1"),
        ("[]", "JSON object"),
        ('{"gatway": "x"}', "did you mean 'gateway'?"),
        ('{"gateway": 7400}', "must be text"),
        ("\xff", "isn't UTF-8 text at byte 0"),
    ],
)
def test_a_broken_settings_file_is_named(
    text: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cli.json").write_text(text, encoding="latin-1")
    assert main(["--config", str(tmp_path / "cli.json"), "tenant", "list"]) == 2
    shown = capsys.readouterr().err
    assert "cli.json" in shown
    assert what in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_ISTHMUS_COMPLETE" in capsys.readouterr().out


def test_a_new_task_passes_its_own_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "init", "clicks"]) == 0
    assert main(["task", "check", "clicks"]) == 0
    assert "clicks@1.0.0 is well formed" in capsys.readouterr().out
    assert main(["task", "init", "clicks"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"event"', '"evnt"', "did you mean 'event'?"),
        ('"sequence"', '"sequence" x', "line"),
        ('"main.py"', '"other.py"', "other.py"),
        ('"entry_point": "run"', '"entry_point": "rum"', "did you mean 'run'?"),
    ],
)
def test_a_broken_task_is_explained(
    old: str, new: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["task", "init", "clicks"])
    path = Path("clicks/task.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert main(["task", "check", "clicks"]) in (2, 4)
    assert what in capsys.readouterr().err


def test_a_syntax_error_shows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["task", "init", "clicks"])
    Path("clicks/main.py").write_text("def run(context):\n    return {'a': 1\n")
    assert main(["task", "check", "clicks"]) == 2
    shown = capsys.readouterr().err
    assert "main.py, line 2" in shown
    assert "return {'a': 1" in shown


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"isk_\xff\xfe", "isn't UTF-8 text"), (b"", "is empty"), (b"two\nlines", "doesn't hold an API key")],
)
def test_a_key_file_that_holds_none_is_named_and_never_repeated(
    content: bytes, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "api.key"
    path.write_bytes(content)
    assert main(["--api-key-file", str(path), "tenant", "list"]) == 3
    shown = capsys.readouterr().err
    assert f"API key file {path}" in shown
    assert what in shown
    assert "two" not in shown


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["key", "create", "--scope", "*", "--out", "missing/key"], "--out missing/key"),
        (["key", "create", "--scope", "*", "--out", "there"], "is there already"),
        (["device", "token", "--out", "/dev/full"], "--out /dev/full: is no plain file"),
        (["blob", "get", "sha256:" + "0" * 64, "--out", "missing/blob"], "--out missing/blob"),
        (["tunnel", "export", "--position-file", "missing/at"], "--position-file missing/at"),
        (["tunnel", "export", "--position-file", "binary"], "isn't UTF-8 text"),
    ],
)
def test_files_are_checked_before_a_service_is_called(
    arguments: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ISTHMUS_API_KEY", "isk_a_b")
    (tmp_path / "there").write_text("precious")
    (tmp_path / "binary").write_bytes(b"\xff")
    # Nothing listens there: a command that called first would end with 5.
    assert main(["--gateway", "127.0.0.1:9", "--timeout", "5", *arguments]) in (1, 2, 4)
    assert what in capsys.readouterr().err
    assert (tmp_path / "there").read_text() == "precious"


def test_ordinary_file_errors_are_no_tracebacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["task", "init", "clicks", "--folder", "file/clicks"]) == 2
    assert "file/clicks" in capsys.readouterr().err
    assert main(["task", "init", "clicks", "--folder", "file/clicks", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["reason"] == "BAD_FILE"


@pytest.mark.parametrize("command", [["blob", "put", "pipe"], ["blob", "put", "/dev/zero"]])
def test_what_has_no_end_is_not_uploaded(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ISTHMUS_API_KEY", "isk_a_b")
    os.mkfifo(tmp_path / "pipe")
    assert main(["--gateway", "127.0.0.1:9", *command]) == 2
    assert "is no plain file" in capsys.readouterr().err


def test_what_was_typed_is_told_without_its_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "compare", "a", "b", "--dim", "\x1b[31mx"]) == 2
    assert main(["model", "explain", "a", "\x1b[31m\u202eb"]) == 2
    assert not set(capsys.readouterr().err) & set("\x1b\u202e")
