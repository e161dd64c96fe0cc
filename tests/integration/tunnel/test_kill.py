"""kill -9 at random moments: what was acknowledged is there exactly once, and the log goes on."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from services.gateway.tunnel.domain.frame import Device, Stream
from services.gateway.tunnel.store.files import FileLog
from services.gateway.tunnel.testing import EPOCH, everything

Opener = Callable[..., Coroutine[Any, Any, FileLog]]

# Four devices append as fast as they can, from their marks on. After each append the device and its mark go
# to standard output by one small write, which a pipe takes whole or not at all.
WRITER = """
import asyncio, os, sys
from pathlib import Path
from libs.common.clock import SystemClock
from libs.common.rand import SystemRandomness
from services.gateway.tunnel.domain.frame import Device
from services.gateway.tunnel.store.files import LogSettings, open_log
from services.gateway.tunnel.testing import STREAM, frame

async def send(log, device):
    mark = log.marks(device).get(STREAM, 0)
    os.write(1, f"{device.device} {mark}\\n".encode())
    while True:
        payload = f"{device.device} {mark + 1}".encode() * (1 + mark % 40)
        both = [frame(mark + 1, device=device, payload=payload), frame(mark + 2, device=device)]
        receipt = await log.append(both)
        mark = receipt.marks[STREAM]
        os.write(1, f"{device.device} {mark}\\n".encode())

async def main():
    settings = LogSettings(partitions=2, segment_bytes=20_000)
    log = await open_log(Path(sys.argv[1]), settings, clock=SystemClock(), randomness=SystemRandomness())
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(send(log, Device("acme", f"phone-{number}")))

asyncio.run(main())
"""


def _write_and_kill(folder: Path, lines: int) -> dict[str, int]:
    """Run the writer until it has printed so many lines, kill it, and return the marks it had printed."""
    acked: dict[str, int] = {}
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for number, line in enumerate(writer.stdout):
            device, mark = line.split()
            acked[device] = int(mark)
            if number == lines:
                os.kill(writer.pid, signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    return acked


async def test_nothing_acknowledged_is_lost(opener: Opener, tmp_path: Path) -> None:
    choose = random.Random(7)
    acked: dict[str, int] = {}
    torn = 0
    for _ in range(12):
        before = dict(acked)
        acked |= await asyncio.to_thread(_write_and_kill, tmp_path / "log", choose.randint(5, 400))
        assert all(acked[device] >= mark for device, mark in before.items())
        log = await opener(partitions=2, segment_bytes=20_000)
        torn += log.stats().torn_bytes
        assert log.stats().quarantined == 0
        records = await everything(log)
        for name, mark in acked.items():
            device = Device("acme", name)
            found = [record.frame for record in records if record.frame.device == device]
            assert [frame.sequence for frame in found] == list(range(1, len(found) + 1))
            assert len(found) >= mark
            assert log.marks(device) == {Stream("profile/visits", EPOCH): len(found)}
            for frame in found[::2]:
                assert frame.payload.startswith(f"{name} {frame.sequence}".encode())
        await log.close()
    assert sum(acked.values()) > 100
