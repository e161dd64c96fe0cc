"""Random histories of appends, failing disks, trims, crashes with garbled tails and reopenings, on a model.

The model is the last acknowledged sequence of each device. After every reopening the log must hold all up to
there exactly once, and at most the frames of the one append that failed or was under way besides.
"""

import asyncio
import errno
import random
import shutil
from pathlib import Path

import pytest

from libs.common.errors import Exhausted, Unavailable
from libs.common.testing import FakeClock, FakeRandomness
from services.gateway.tunnel.domain.frame import Device
from services.gateway.tunnel.store.files import FileLog, LogSettings, open_log
from services.gateway.tunnel.testing import STREAM, FaultyDisk, everything, frame

DEVICES = [Device("acme", f"phone-{number}") for number in range(3)]


class History:
    """One random history."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder / "log"
        self.choose = random.Random(seed)
        self.clock = FakeClock()
        self.randomness = FakeRandomness(seed)
        self.disk = FaultyDisk()
        self.acked = dict.fromkeys(DEVICES, 0)
        self.trimmed = False
        self.leftover = False

    async def open(self) -> FileLog:
        self.disk = FaultyDisk()
        return await open_log(
            self.folder,
            LogSettings(partitions=1, segment_bytes=self.choose.choice([300, 900, 5000])),
            clock=self.clock,
            randomness=self.randomness,
            disk=self.disk,
        )

    async def append(self, log: FileLog) -> None:
        device = self.choose.choice(DEVICES)
        start = self.acked[device] + 1
        count = self.choose.randint(1, 5)
        payload = self.choose.randbytes(self.choose.randint(0, 200))
        group = [frame(start + n, device=device, payload=payload) for n in range(count)]
        receipt = await log.append(group)
        assert receipt.marks[STREAM] == start + count - 1
        self.acked[device] += count

    async def fail(self, log: FileLog) -> None:
        """Try to append while the disk doesn't let us."""
        self.disk.truncate_fails = self.choose.random() < 0.5
        if self.choose.random() < 0.5:
            self.disk.room = self.choose.randint(0, 300)
        else:
            self.disk.sync_errno = self.choose.choice([errno.EIO, errno.ENOSPC])
        try:
            await self.append(log)
        except (Exhausted, Unavailable):
            assert log.stats().fault
            # What couldn't even be cut off again may be found whole by the next process.
            self.leftover = self.leftover or self.disk.truncate_fails
        self.disk.room, self.disk.sync_errno, self.disk.truncate_fails = None, 0, False

    async def reopen(self, log: FileLog) -> FileLog:
        await log.close()
        log = await self.open()
        if self.leftover:
            for device, mark in self.acked.items():
                found = log.marks(device).get(STREAM, 0)
                assert mark <= found <= mark + 5
                self.acked[device] = found
            self.leftover = False
        return log

    async def trim(self, log: FileLog) -> None:
        self.clock.advance(8 * 86400.0)
        self.trimmed = await log.trim() > 0 or self.trimmed

    async def crash(self, log: FileLog) -> FileLog:
        """Crash while an append is being written: of its bytes, anything may be there."""
        before = {path: path.stat().st_size for path in self.folder.glob("p-000/*.seg")}
        durable = dict(self.acked)
        await self.append(log)
        under_way, self.acked = self.acked, durable
        left = self.folder.with_name("left")
        shutil.copytree(self.folder, left)
        await log.close()
        shutil.rmtree(self.folder)
        left.rename(self.folder)
        for path in self.folder.glob("p-000/*.seg"):
            self._garble(path, before.get(path, 0))
        log = await self.open()
        assert log.stats().quarantined == 0
        for device, mark in under_way.items():
            found = log.marks(device).get(STREAM, 0)
            assert self.acked[device] <= found <= mark
            self.acked[device] = found
        return log

    def _garble(self, path: Path, durable: int) -> None:
        data = bytearray(path.read_bytes())
        if len(data) == durable:
            return
        kind = self.choose.randrange(4)
        if kind == 0:
            del data[self.choose.randint(durable, len(data)) :]
        elif kind == 1:
            data[durable:] = bytes(len(data) - durable)
        elif kind == 2:
            at = self.choose.randrange(durable, len(data))
            data[at:] = self.choose.randbytes(len(data) - at)
        path.write_bytes(data)

    async def check(self, log: FileLog) -> None:
        records = await everything(log)
        for device, mark in self.acked.items():
            assert log.marks(device).get(STREAM, 0) == mark
            sequences = [record.frame.sequence for record in records if record.frame.device == device]
            first = sequences[0] if self.trimmed and sequences else 1
            if sequences or not self.trimmed:
                assert sequences == list(range(first, mark + 1))


@pytest.mark.parametrize("seed", range(25))
async def test_a_random_history(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    log = await history.open()
    for _ in range(60):
        step = history.choose.choices(["append", "fail", "trim", "crash", "reopen"], [12, 3, 1, 3, 2])[0]
        if step == "append":
            await history.append(log)
        elif step == "fail":
            await history.fail(log)
        elif step == "trim":
            await history.trim(log)
        elif step == "crash":
            log = await history.crash(log)
        else:
            log = await history.reopen(log)
        await history.check(log)
    await log.close()
    assert sum(history.acked.values()) > 20


async def test_overlapping_senders_of_one_device(tmp_path: Path) -> None:
    """Many tasks resend overlapping ranges while the disk fails now and then: each frame is kept once."""
    history = History(tmp_path, 99)
    log = await history.open()

    async def send(start: int) -> None:
        low = start
        while low < 200:
            try:
                await log.append([frame(low + n, device=DEVICES[0]) for n in range(10)])
                low += 7
            except Unavailable:  # as a device does: the same frames again
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for start in range(1, 8):
            group.create_task(send(start))
        for _ in range(10):
            history.disk.sync_errno = errno.EIO
            await asyncio.sleep(0)
            history.disk.sync_errno = 0
            await asyncio.sleep(0)
    mark = log.marks(DEVICES[0])[STREAM]
    assert mark == 208  # the last ten begin at 199
    assert [record.frame.sequence for record in await everything(log)] == list(range(1, mark + 1))
    await log.close()
