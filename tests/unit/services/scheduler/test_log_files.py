"""Logs in files: segments, bounds, and what a crash leaves."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.logs import LogKey
from services.scheduler.log_files import SegmentedLogFiles

KEY = LogKey("acme", "u1", 1, 0)


def whole(files: SegmentedLogFiles, offset: int = 0) -> tuple[int, bytes]:
    """Read a log from an offset, and return where it began."""
    start, data = None, b""
    while True:
        part = files.read(KEY, offset, 7)
        if part is None or not part.data:
            return start or 0, data
        start = part.offset if start is None else start
        data += part.data
        offset = part.offset + len(part.data)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 120), st.binary(max_size=40)), max_size=30))
def test_any_appends_give_one_log_of_which_the_end_is_kept(
    tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    files, log = SegmentedLogFiles(folder, keep_bytes=64), b""
    for offset, data in appends:
        if offset <= len(log):
            log += data[len(log) - offset :]
        # Another process over the same files sees the same.
        files = SegmentedLogFiles(folder, keep_bytes=64)
        assert files.append(KEY, offset, data, last=False) == len(log)
    start, kept = whole(files)
    assert log[start:] == kept
    assert len(kept) == len(log) or len(kept) >= 64
    assert len(kept) <= 64 + 8


def test_bytes_that_were_written_and_not_answered_for_are_there(tmp_path: Path) -> None:
    files = SegmentedLogFiles(tmp_path, keep_bytes=64)
    files.append(KEY, 0, b"abc", last=False)
    (segment,) = (tmp_path / "acme" / "u1" / "1" / "0").iterdir()
    with segment.open("ab") as file:
        file.write(b"de")  # and then the process died
    assert files.append(KEY, 3, b"def", last=True) == 6
    assert whole(files) == (0, b"abcdef")
    part = files.read(KEY, 6, 10)
    assert part is not None
    assert part.complete


def test_a_log_that_is_not_there_is_none(tmp_path: Path) -> None:
    files = SegmentedLogFiles(tmp_path, keep_bytes=64)
    assert files.read(KEY, 0, 10) is None
    files.append(KEY, 0, b"", last=True)
    part = files.read(KEY, 0, 10)
    assert part is not None
    assert (part.data, part.complete) == (b"", True)


def test_jobs_are_forgotten_whole(tmp_path: Path) -> None:
    files = SegmentedLogFiles(tmp_path, keep_bytes=64)
    other = LogKey("rival", "u2", 1, 0)
    files.append(KEY, 0, b"a", last=True)
    files.append(other, 0, b"b", last=True)
    assert sorted(files.jobs()) == [("acme", "u1"), ("rival", "u2")]
    files.forget("acme", "u1")
    files.forget("acme", "u1")
    assert files.jobs() == [("rival", "u2")]
