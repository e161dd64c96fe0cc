"""A disk that is full or fails: nothing is said durable that isn't, and it heals by itself."""

import asyncio
import errno
import itertools
import resource
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from libs.common.errors import Exhausted, Unavailable
from services.gateway.tunnel.domain.frame import Outcome
from services.gateway.tunnel.store.files import FileLog
from services.gateway.tunnel.testing import DEVICE, STREAM, FaultyDisk, everything, frame, frames

Opener = Callable[..., Coroutine[Any, Any, FileLog]]
STORED = (Outcome.STORED,)


def sequences(records: list[Any]) -> list[int]:
    return [record.frame.sequence for record in records]


async def _append_for_ever(log: FileLog) -> None:
    for sequence in itertools.count(1):
        await log.append([frame(sequence)])


@pytest.mark.parametrize("room", [0, 1, 31, 32, 100, 400, 700])
async def test_a_full_disk_keeps_nothing_half_and_heals(opener: Opener, tmp_path: Path, room: int) -> None:
    disk = FaultyDisk(room)
    log = await opener(disk, segment_bytes=500)
    with pytest.raises(Exhausted) as full:
        await _append_for_ever(log)
    kept = len(await everything(log))
    assert full.value.reason == "DISK_FULL"
    assert full.value.retry_after_s
    assert "No space left" in log.stats().fault
    assert log.marks(DEVICE).get(STREAM, 0) == kept
    assert sequences(await everything(log)) == list(range(1, kept + 1))
    assert kept == {0: 0, 1: 0, 31: 0, 32: 0, 100: 0, 400: 2, 700: 4}[room]
    with pytest.raises(Exhausted):
        await log.append([frame(kept + 1)])
    disk.room = None
    assert (await log.append([frame(kept + 1)])).outcomes == STORED
    assert log.stats().fault == ""
    await log.close()
    log = await opener(segment_bytes=500)
    assert sequences(await everything(log)) == list(range(1, kept + 2))
    assert log.stats().torn_bytes == 0
    await log.close()


async def test_what_a_failed_write_left_is_cut_by_recovery(opener: Opener, tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = await opener(disk)
    await log.append(frames([1, 2]))
    disk.room, disk.truncate_fails = 60, True
    with pytest.raises(Exhausted):
        await log.append(frames([3]))
    await log.close()
    log = await opener()
    assert log.stats().torn_bytes == 60
    assert log.stats().quarantined == 0
    assert (await log.append(frames([3]))).outcomes == STORED
    assert sequences(await everything(log)) == [1, 2, 3]
    await log.close()


async def test_what_a_failed_write_left_is_written_over(opener: Opener, tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = await opener(disk)
    await log.append(frames([1, 2]))
    disk.room, disk.truncate_fails = 2000, True
    with pytest.raises(Exhausted):
        await log.append([frame(3, payload=bytes(5000))])
    disk.room = None
    await log.append(frames([3, 4]))
    assert sequences(await everything(log)) == [1, 2, 3, 4]
    await log.close()
    log = await opener()
    assert sequences(await everything(log)) == [1, 2, 3, 4]
    assert log.stats().quarantined == 0
    await log.close()


@pytest.mark.parametrize("truncate_fails", [False, True])
async def test_a_failed_sync_acknowledges_nothing_and_leaves_that_file(
    opener: Opener, tmp_path: Path, truncate_fails: bool
) -> None:
    disk = FaultyDisk()
    log = await opener(disk)
    await log.append(frames([1, 2]))
    disk.sync_errno, disk.truncate_fails = errno.EIO, truncate_fails
    with pytest.raises(Unavailable) as caught:
        await log.append(frames([3]))
    assert caught.value.reason == "LOG_WRITE_FAILED"
    assert log.marks(DEVICE) == {STREAM: 2}
    assert sequences(await everything(log)) == [1, 2]
    disk.sync_errno, disk.truncate_fails = 0, False
    other = [frame(3, payload=b"the second try")]
    assert (await log.append(other)).outcomes == STORED
    assert len(list((tmp_path / "log/p-000").glob("*.seg"))) == 2
    await log.close()
    log = await opener()
    records = await everything(log)
    assert sequences(records) == [1, 2, 3]
    assert records[2].frame == other[0], "what wasn't acknowledged isn't there beside it"
    assert log.stats().quarantined == 0
    await log.close()


async def test_a_first_write_that_fails_leaves_no_file(opener: Opener, tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.sync_errno = errno.EIO
    log = await opener(disk)
    with pytest.raises(Unavailable):
        await log.append(frames([1]))
    assert list((tmp_path / "log/p-000").glob("*.seg")) == []
    disk.sync_errno = 0
    assert (await log.append(frames([1]))).outcomes == STORED
    await log.close()


async def test_an_empty_segment_whose_sync_failed_is_replaced(opener: Opener, tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = await opener(disk)
    disk.room = 32
    with pytest.raises(Exhausted):
        await log.append(frames([1]))
    disk.room = None
    disk.sync_errno = errno.EIO
    with pytest.raises(Unavailable):
        await log.append(frames([1]))
    disk.sync_errno = 0
    await log.append(frames([1]))
    assert sequences(await everything(log)) == [1]
    assert len(list((tmp_path / "log/p-000").glob("*.seg"))) == 1
    await log.close()


async def test_a_probe_notices_that_there_is_room_again(opener: Opener) -> None:
    disk = FaultyDisk(0)
    log = await opener(disk)
    with pytest.raises(Exhausted):
        await log.append(frames([1]))
    assert log.stats().fault
    await log.probe()
    assert log.stats().fault == ""
    await log.close()


FILE_SIZE_LIMIT = """
import asyncio, sys
from pathlib import Path
from libs.common.clock import SystemClock
from libs.common.errors import Exhausted
from libs.common.rand import SystemRandomness
from services.gateway.tunnel.store.files import LogSettings, open_log
from services.gateway.tunnel.testing import frame

async def main():
    settings = LogSettings(partitions=1)
    log = await open_log(Path(sys.argv[1]), settings, clock=SystemClock(), randomness=SystemRandomness())
    kept = 0
    try:
        while True:
            await log.append([frame(kept + 1, payload=bytes(3000))])
            kept += 1
    except Exhausted as full:
        print(kept, full.reason)
    await log.close()

asyncio.run(main())
"""


async def test_the_systems_own_limit_on_a_file_is_a_full_disk(opener: Opener, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FILE_SIZE_LIMIT, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept, reason = done.stdout.split()
    assert reason == "DISK_FULL"
    assert 25 < int(kept) < 34
    log = await opener()
    assert sequences(await everything(log)) == list(range(1, int(kept) + 1))
    assert log.stats().torn_bytes == 0
    await log.close()
