"""What every log promises, whatever it is made of."""

import asyncio
import random

import pytest

from libs.common.errors import OutOfRange, Unavailable
from libs.common.testing import FakeClock
from services.gateway.tunnel.domain.frame import Codec, Device, Outcome, Record, Stream
from services.gateway.tunnel.store.log import Log, partition_of
from services.gateway.tunnel.testing import DEVICE, STREAM, frame, frames

STORED, DUPLICATE, GAP = Outcome.STORED, Outcome.DUPLICATE, Outcome.GAP


async def everything(log: Log, max_bytes: int = 1000) -> list[Record]:
    found: list[Record] = []
    for partition, bounds in enumerate(log.bounds()):
        offset = bounds.earliest
        while offset < bounds.end:
            part = await log.read(partition, offset, max_bytes)
            assert part.records, "there are records up to the end"
            assert [record.offset for record in part.records] == list(range(offset, part.next_offset))
            found += part.records
            offset = part.next_offset
    return found


async def test_what_was_appended_is_read_back_whole(log: Log, clock: FakeClock) -> None:
    given = [
        frame(1, payload=b""),
        frame(2, payload=bytes(range(256)) * 4),
        frame(3, tombstone_reason="UNDECLARED_FIELD"),
        frame(1, stream=Stream("other/größe", bytes(16))),
    ]
    receipt = await log.append(given)
    assert receipt.outcomes == (STORED,) * 4
    assert receipt.marks == {STREAM: 3, given[3].stream: 1}
    records = await everything(log)
    assert [record.frame for record in records] == given
    assert {record.received_ms for record in records} == {int(clock.now().timestamp() * 1000)}
    assert records[2].frame.tombstone
    assert records[2].frame.codec is Codec.NONE


async def test_an_empty_append_does_nothing(log: Log) -> None:
    receipt = await log.append([])
    assert receipt.outcomes == ()
    assert all(bounds.end == 0 for bounds in log.bounds())


async def test_a_frame_is_kept_once(log: Log) -> None:
    await log.append(frames([1, 2]))
    receipt = await log.append(frames([1, 2, 2, 3, 3, 4]))
    assert receipt.outcomes == (DUPLICATE, DUPLICATE, DUPLICATE, STORED, DUPLICATE, STORED)
    assert [record.frame.sequence for record in await everything(log)] == [1, 2, 3, 4]


async def test_a_frame_after_a_gap_is_not_kept(log: Log) -> None:
    receipt = await log.append(frames([1, 3, 4, 2]))
    assert receipt.outcomes == (STORED, GAP, GAP, STORED)
    assert receipt.marks[STREAM] == 2
    assert (await log.append(frames([3]))).outcomes == (STORED,)


async def test_a_stream_starts_at_one(log: Log) -> None:
    receipt = await log.append(frames([2]))
    assert receipt.outcomes == (GAP,)
    assert receipt.marks[STREAM] == 0
    assert log.marks(DEVICE).get(STREAM, 0) == 0


async def test_epochs_devices_and_tenants_do_not_share_sequences(log: Log) -> None:
    other_life = Stream(STREAM.name, bytes(16))
    namesake = Device("rival", DEVICE.device)
    await log.append([*frames([1, 2, 3]), *frames([1], stream=other_life)])
    await log.append(frames([1, 2], device=namesake))
    assert log.marks(DEVICE) == {STREAM: 3, other_life: 1}
    assert log.marks(namesake) == {STREAM: 2}


async def test_overlapping_appends_keep_each_frame_once(log: Log) -> None:
    choose = random.Random(1)
    tasks = []
    for _ in range(60):
        start = choose.randint(1, 60)
        tasks.append(asyncio.create_task(log.append(frames(range(start, start + 20)))))
    await asyncio.gather(*tasks)
    await log.append(frames(range(1, 80)))
    assert [record.frame.sequence for record in await everything(log)] == list(range(1, 80))


async def test_many_devices_in_parallel(log: Log) -> None:
    devices = [Device("acme", f"phone-{number}") for number in range(30)]

    async def send(device: Device) -> None:
        for start in range(1, 40, 3):
            receipt = await log.append(frames(range(start, start + 3), device=device))
            assert receipt.outcomes == (STORED,) * 3

    await asyncio.gather(*(send(device) for device in devices))
    records = await everything(log)
    for device in devices:
        sequences = [record.frame.sequence for record in records if record.frame.device == device]
        assert sequences == list(range(1, 40))


async def test_a_device_stays_in_its_partition(log: Log) -> None:
    await log.append(frames(range(1, 20)))
    ends = [bounds.end for bounds in log.bounds()]
    assert ends[partition_of(DEVICE, log.partitions)] == 19
    assert sum(ends) == 19


async def test_reading_in_small_slices_and_at_the_end(log: Log) -> None:
    await log.append(frames(range(1, 50)))
    partition = partition_of(DEVICE, log.partitions)
    assert len(await everything(log, max_bytes=1)) == 49
    for offset in range(49):
        part = await log.read(partition, offset, 1)
        assert [record.frame.sequence for record in part.records] == [offset + 1]
    end = await log.read(partition, 49, 1000)
    assert (end.records, end.next_offset) == ((), 49)


@pytest.mark.parametrize("offset", [-1, 3])
async def test_reading_outside_is_refused(log: Log, offset: int) -> None:
    await log.append(frames([1, 2]))
    with pytest.raises(OutOfRange, match="there are 0 to 2"):
        await log.read(partition_of(DEVICE, log.partitions), offset, 1000)


async def test_waiting_ends_when_something_is_appended(log: Log) -> None:
    ends = [bounds.end for bounds in log.bounds()]
    waiters = [asyncio.create_task(log.wait(ends)) for _ in range(3)]
    gone = asyncio.create_task(log.wait(ends))
    await asyncio.sleep(0)
    gone.cancel()
    await log.append(frames([2]))
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters), "a gap adds nothing"
    await log.append(frames([1]))
    await asyncio.gather(*waiters)
    await log.wait(ends)


async def test_old_records_go_and_marks_stay(log: Log, clock: FakeClock) -> None:
    for start in range(1, 41, 4):
        await log.append(frames(range(start, start + 4)))
    clock.advance(86400.0 + 1)
    assert await log.trim() == 40
    partition = partition_of(DEVICE, log.partitions)
    bounds = log.bounds()[partition]
    assert (bounds.earliest, bounds.end) == (40, 40)
    assert log.marks(DEVICE) == {STREAM: 40}
    with pytest.raises(OutOfRange):
        await log.read(partition, 0, 1000)
    assert (await log.append(frames([40, 41]))).outcomes == (DUPLICATE, STORED)
    assert [record.offset for record in await everything(log)] == [40]


async def test_what_is_young_stays(log: Log, clock: FakeClock) -> None:
    await log.append(frames(range(1, 41)))
    clock.advance(3600.0)
    assert await log.trim() == 0
    assert len(await everything(log)) == 40


async def test_marks_of_a_device_are_bounded(log: Log) -> None:
    for number in range(300):
        epoch = number.to_bytes(16, "big")
        await log.append(frames([1], stream=Stream(STREAM.name, epoch)))
    marks = log.marks(DEVICE)
    assert len(marks) == 256
    assert Stream(STREAM.name, (44).to_bytes(16, "big")) in marks
    assert Stream(STREAM.name, (43).to_bytes(16, "big")) not in marks


async def test_a_cancelled_append_leaves_the_log_whole(log: Log) -> None:
    task = asyncio.create_task(log.append(frames([1, 2, 3])))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    receipt = await log.append(frames([1, 2, 3, 4]))
    assert receipt.marks[STREAM] == 4
    assert [record.frame.sequence for record in await everything(log)] == [1, 2, 3, 4]


async def test_a_closed_log_takes_nothing(log: Log) -> None:
    await log.append(frames([1]))
    await log.close()
    with pytest.raises(Unavailable, match="closed"):
        await log.append(frames([2]))
    await log.close()


async def test_a_sound_log_has_no_fault(log: Log) -> None:
    await log.append(frames([1]))
    await log.probe()
    stats = log.stats()
    assert (stats.fault, stats.quarantined, stats.torn_bytes) == ("", 0, 0)
    assert stats.bytes > 0
    assert len(log.log_id) >= 16
