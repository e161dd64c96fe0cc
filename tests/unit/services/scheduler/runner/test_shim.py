"""The keeper's parts that need no worker; whole ones are in the integration tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.testing import eventually
from services.scheduler.runner.shim import processes
from services.scheduler.runner.shim.records import Launch, Log, decode, encode, write_record

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(TEXT.filter(lambda key: "=" not in key), TEXT)))
def test_entries_come_back_as_they_were(entries: list[tuple[str, str]]) -> None:
    assert decode(encode(entries)) == entries


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reading(data: bytes) -> None:
    decode(data)
    with pytest.raises((KeyError, ValueError)):
        Launch(data)


def test_a_record_is_whole_or_not_there(tmp_path: Path) -> None:
    write_record(f"{tmp_path}/exit", [("reason", "x")])
    assert decode((tmp_path / "exit").read_bytes()) == [("reason", "x")]
    assert [path.name for path in tmp_path.iterdir()] == ["exit"]


def test_a_log_keeps_what_fits_and_counts_the_rest(tmp_path: Path) -> None:
    log = Log(f"{tmp_path}/log", 10)
    for piece in (b"12345", b"67890ab", b"cd"):
        log.write(piece)
    assert log.dropped == 4
    log.close()
    kept = (tmp_path / "log").read_bytes()
    assert kept == b"1234567890\n[isthmus: 4 more bytes of output were dropped]\n"


def test_a_full_disk_costs_output_only(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    log = Log(f"{tmp_path}/log", 1000)
    log.write(b"x" * 100)
    assert log.dropped == 100
    log.close()


def test_descendants_are_found_and_measured() -> None:
    script = "import subprocess, sys; subprocess.run(['sh', '-c', 'echo; read x; exit'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as top:
        assert top.stdout is not None
        top.stdout.readline()
        below = processes.descendants(top.pid)
        assert len(below) == 1
        assert top.pid in processes.children(os.getpid())
        assert processes.resident_bytes(top.pid) > 2**20
        assert 0 < processes.proportional_bytes(top.pid) <= processes.resident_bytes(top.pid)
        assert processes.start_ticks(below[0]) >= processes.start_ticks(top.pid)
        top.communicate(b"\n")
    assert processes.descendants(top.pid) == []
    assert processes.resident_bytes(top.pid) == processes.proportional_bytes(top.pid) == 0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_what_is_frozen_stands_still_until_it_is_killed() -> None:
    top = subprocess.Popen(  # noqa: ASYNC220 - its own thread of events is what is tested
        ["sh", "-c", "sh -c 'echo; sleep 1000' & wait"], stdout=subprocess.PIPE
    )
    try:
        assert top.stdout is not None
        top.stdout.readline()
        below = processes.freeze(top.pid)
        assert below
        # D: it has just forked (vfork), and waits for a child that was stopped before it could go on.
        await eventually(lambda: all(state_of(pid) in ("T", "D") for pid in below))
    finally:
        for pid in (*processes.descendants(top.pid), top.pid):
            processes.send(pid, 9)
        top.communicate()
    processes.send(top.pid, 9)  # nobody is there any more, and that is fine
