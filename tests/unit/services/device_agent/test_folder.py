import os
from pathlib import Path

import pytest

from libs.common.errors import Exhausted, Precondition
from libs.common.fsio import FULL
from services.device_agent import folder
from services.device_agent.config import AgentConfig


def settings(state: Path, socket: Path | None = None) -> AgentConfig:
    return AgentConfig(state_dir=state, socket_path=socket)


def test_the_folder_is_made_for_this_user_and_taken_once(tmp_path):
    config = settings(tmp_path / "a" / "state")
    held = folder.take(config)
    assert config.state_dir.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Precondition, match="--state-dir: another agent"):
        folder.take(config)
    os.close(held)
    os.close(folder.take(config))


def test_a_state_folder_that_is_a_file_names_the_flag(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Precondition, match=r"--state-dir: .*is, or lies under, a file"):
            folder.take(settings(path))


def test_a_folder_for_the_socket_is_not_made(tmp_path):
    with pytest.raises(Precondition, match=r"--socket-path: the folder .*nope isn't there"):
        folder.take(settings(tmp_path / "state", tmp_path / "nope" / "sock"))
    assert not (tmp_path / "nope").exists()
    (tmp_path / "nope").mkdir()
    os.close(folder.take(settings(tmp_path / "state", tmp_path / "nope" / "sock")))


def test_only_a_socket_is_cleared_away(tmp_path):
    path = tmp_path / "sock"
    folder.clear_socket(path)
    path.touch()
    with pytest.raises(Precondition, match="--socket-path"):
        folder.clear_socket(path)
    assert path.exists()


def test_a_full_disk_is_told_before_the_workers_meet_it(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    folder.check_scratch(tmp_path / "vm")
    assert list((tmp_path / "vm").iterdir()) == []
    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(Exhausted, match=FULL):
        folder.check_scratch(tmp_path / "vm")
