import os
from pathlib import Path

import pytest

from libs.common.errors import Invalid
from libs.common.names import JobName
from services.scheduler.domain.objects import WorkerId
from services.scheduler.runner.folder import Folders, WorkerFolder, key_of


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "workers")


def test_what_was_asked_for_is_there_after_a_restart(folders: Folders, tmp_path: Path) -> None:
    made = folders.make("u-1-0", b"asked")
    (found,) = Folders(tmp_path / "workers").all()
    assert found == made
    assert found.start() == b"asked"
    assert (found.keeper(), found.running(), found.exit(), found.stop_requested()) == (None,) * 4
    assert oct((tmp_path / "workers").stat().st_mode & 0o777) == "0o700"


def test_what_was_half_made_or_half_removed_goes(folders: Folders, tmp_path: Path) -> None:
    for name in (".new-u-1-0", ".gone-u-2-0"):
        (tmp_path / "workers" / name / "job").mkdir(parents=True)
    assert Folders(tmp_path / "workers").all() == []
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_stop_that_was_asked_for_is_remembered_and_its_first_reason_stays(folders: Folders) -> None:
    made = folders.make("u-1-0", b"")
    made.request_stop("SIBLING_FAILED")
    made.request_stop("CANCELLED")
    assert made.stop_requested() == "SIBLING_FAILED"
    odd = folders.make("u-1-1", b"")
    odd.request_stop("../../etc/passwd")
    assert odd.stop_requested() == "CANCELLED"


def test_the_lock_has_one_holder(folders: Folders) -> None:
    made = folders.make("u-1-0", b"")
    lock = made.take_lock()
    assert lock is not None
    assert made.take_lock() is None
    os.close(lock)
    again = made.take_lock()
    assert again is not None
    os.close(again)


def test_removing_takes_all_of_it_even_what_was_locked_away(folders: Folders, tmp_path: Path) -> None:
    made = folders.make("u-1-0", b"")
    deep = made.job / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (made.job / "out").symlink_to(tmp_path)
    deep.chmod(0)
    (made.job / "a").chmod(0)
    folders.remove(made)
    folders.remove(made)
    assert list((tmp_path / "workers").iterdir()) == []
    assert tmp_path.is_dir()


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "../a", "a" * 65, "ä", "-a", ".a", "a\n"])
def test_a_uid_that_cant_be_a_file_name_is_refused(uid: str) -> None:
    with pytest.raises(Invalid, match="job_uid"):
        key_of(WorkerId(JobName("acme", "train"), uid, 1, 0))


def test_each_worker_has_its_own_folder() -> None:
    job = JobName("acme", "train")
    ids = [WorkerId(job, uid, attempt, rank) for uid in "ab" for attempt in (1, 11) for rank in (0, 1)]
    assert len({key_of(id_) for id_ in ids}) == len(ids)


def test_a_record_that_isnt_there_is_none(tmp_path: Path) -> None:
    assert WorkerFolder(tmp_path / "none").exit() is None
