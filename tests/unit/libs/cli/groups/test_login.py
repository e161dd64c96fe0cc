"""`isthmus login`: what it remembers, and whose key it tries."""

import json
from pathlib import Path

import pytest

from libs.cli.testing import KEY, FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a stack, and the user's settings in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("ISTHMUS_HOME", "ISTHMUS_CONFIG", "ISTHMUS_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_what_was_tried_is_remembered(
    cloud: FakeCloud, isthmus: Isthmus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "my.key").write_text(KEY + "\n")
    ran = isthmus("login", "--key-file", "my.key")
    assert ran.code == 0, ran.err
    file = home / "config" / "isthmus" / "cli.json"
    assert json.loads(file.read_text()) == {
        "gateway": cloud.target,
        "api_key_file": str(home / "my.key"),
        "tenant": "acme",
    }
    assert file.stat().st_mode & 0o777 == 0o600
    for name in ("ISTHMUS_ADDRESS", "ISTHMUS_API_KEY", "ISTHMUS_TENANT"):
        monkeypatch.delenv(name)
    assert isthmus("job", "list").lines == ["(none)"]


@pytest.mark.parametrize("command", [("login", "--key-file"), ("--api-key-file",)], ids=["login", "flag"])
def test_a_key_that_is_named_wins_over_the_environments(
    isthmus: Isthmus, home: Path, command: tuple[str, ...]
) -> None:
    # The environment's is good.
    rest = () if command[0] == "login" else ("job", "list")
    ran = isthmus(*command, "gone.key", *rest)
    assert (ran.code, "API key file gone.key: No such file" in ran.err) == (3, True)
    assert not (home / "config").exists()
    assert isthmus("job", "list").code == 0
