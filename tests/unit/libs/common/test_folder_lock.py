from pathlib import Path

import pytest

from libs.common.errors import Precondition
from libs.common.folder_lock import held_folder


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with held_folder(tmp_path, "engine"):
        with (
            pytest.raises(Precondition, match="--data-dir: another engine uses") as refused,
            held_folder(tmp_path, "engine"),
        ):
            pass
        assert refused.value.reason == "DATA_DIR_TAKEN"
        with held_folder(tmp_path, "serving"):
            pass
    with held_folder(tmp_path, "engine", "--state-dir"):
        pass


def test_a_folder_is_let_go_of_when_its_holder_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held_folder(tmp_path, "engine"):
        raise ZeroDivisionError
    with held_folder(tmp_path, "engine"):
        pass


def test_a_folder_that_is_not_there_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), held_folder(tmp_path / "none", "engine"):
        pass
