"""Exports: what comes, in which order, and how to go on."""

import asyncio
import re
from collections.abc import Sequence

import pytest

from libs.common.errors import Internal, Invalid, OutOfRange
from libs.common.paging import encode_token
from libs.common.testing import FakeClock
from services.gateway.tunnel.domain.export import Page, Selection, export
from services.gateway.tunnel.domain.frame import Device, Stream
from services.gateway.tunnel.store.log import Slice
from services.gateway.tunnel.store.memory import MemoryLog
from services.gateway.tunnel.testing import DEVICE, EPOCH, STREAM, frame, frames

ACME = Selection("acme")
PHONES = [Device("acme", f"phone-{number}") for number in range(6)]


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(FakeClock(), partitions=4, retention_age_s=60.0)


async def pages(log: MemoryLog, selection: Selection = ACME, position: str = "") -> list[Page]:
    return [page async for page in export(log, selection, position=position)]


def keys(found: Sequence[Page]) -> set[tuple[str, str, int]]:
    every = [
        (record.frame.device.device, record.frame.stream.name, record.frame.sequence)
        for page in found
        for record in page.records
    ]
    assert len(every) == len(set(every)), "each record comes once"
    return set(every)


async def test_all_of_a_tenant_and_nothing_of_another(log: MemoryLog) -> None:
    for device in (*PHONES, Device("rival", "phone-0")):
        await log.append(frames([1, 2, 3], device=device))
    found = await pages(log)
    assert keys(found) == {(device.device, STREAM.name, n) for device in PHONES for n in (1, 2, 3)}
    assert {record.frame.device.tenant for page in found for record in page.records} == {"acme"}
    assert keys(await pages(log, Selection("nobody"))) == set()


async def test_each_device_comes_in_order(log: MemoryLog) -> None:
    for start in range(1, 600, 50):
        for device in PHONES:
            await log.append(frames(range(start, start + 50), device=device))
    found = await pages(log)
    assert max(len(page.records) for page in found) == 256
    for device in PHONES:
        sequences = [r.frame.sequence for page in found for r in page.records if r.frame.device == device]
        assert sequences == list(range(1, 601))


async def test_selections(log: MemoryLog) -> None:
    other, foreign = Stream("profile/clicks", EPOCH), Stream("profiler/visits", EPOCH)
    await log.append([*frames([1]), *frames([1], stream=other), *frames([1], stream=foreign)])
    await log.append([frame(2, tombstone_reason="DROPPED")])
    await log.append(frames([1], device=PHONES[2]))
    one = DEVICE.device
    assert keys(await pages(log, Selection("acme", stream=STREAM.name))) == {
        (one, STREAM.name, 1),
        ("phone-2", STREAM.name, 1),
    }
    assert keys(await pages(log, Selection("acme", stream="profile", device=one))) == {
        (one, STREAM.name, 1),
        (one, other.name, 1),
    }
    assert (one, STREAM.name, 2) not in keys(await pages(log))
    assert (one, STREAM.name, 2) in keys(await pages(log, Selection("acme", tombstones=True)))
    assert keys(await pages(log, Selection("acme", device="phone-9"))) == set()


async def test_going_on_from_every_position_gives_the_rest(log: MemoryLog) -> None:
    for start in range(1, 600, 50):
        for device in PHONES:
            await log.append(frames(range(start, start + 50), device=device))
    found = await pages(log)
    everything = keys(found)
    assert len(found) > 10
    for stopped in range(0, len(found), 3):
        seen = keys(found[: stopped + 1])
        rest = keys(await pages(log, position=found[stopped].position))
        assert not seen & rest
        assert seen | rest == everything
    assert keys(await pages(log, position=found[-1].position)) == set()
    await log.append(frames([601], device=PHONES[3]))
    assert keys(await pages(log, position=found[-1].position)) == {("phone-3", STREAM.name, 601)}


async def test_an_empty_log_gives_a_position_to_start_from(log: MemoryLog) -> None:
    (page,) = await pages(log)
    assert page.records == ()
    await log.append(frames([1]))
    assert keys(await pages(log, position=page.position)) == {(DEVICE.device, STREAM.name, 1)}


async def test_what_is_not_wanted_is_not_read_again(log: MemoryLog) -> None:
    await log.append(frames(range(1, 100)))
    (page,) = await pages(log, Selection("acme", stream="other/stream"))
    assert page.records == ()
    assert keys(await pages(log, position=page.position)) == set()


async def test_following_goes_on_for_ever(log: MemoryLog) -> None:
    await log.append(frames([1]))
    heard: asyncio.Queue[Page] = asyncio.Queue()

    async def follow() -> None:
        async for page in export(log, ACME, follow=True):
            heard.put_nowait(page)

    task = asyncio.create_task(follow())
    async with asyncio.timeout(10):
        assert [record.frame.sequence for record in (await heard.get()).records] == [1]
        await log.append(frames([2, 3]))
        page = await heard.get()
        assert [record.frame.sequence for record in page.records] == [2, 3]
        await log.append(frames([1], device=Device("rival", "x")))
        skipped = await heard.get()
        assert skipped.records == ()
        await log.append(frames([4]))
        assert [record.frame.sequence for record in (await heard.get()).records] == [4]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert keys(await pages(log, position=page.position)) == {(DEVICE.device, STREAM.name, 4)}


async def test_a_position_that_retention_has_overtaken(log: MemoryLog) -> None:
    clock = FakeClock()
    log = MemoryLog(clock, partitions=1, retention_age_s=60.0)
    await log.append(frames([1]))
    found = await pages(log)
    await log.append(frames([2]))
    clock.advance(61.0)
    await log.append(frames([3]))
    await log.trim()
    with pytest.raises(OutOfRange, match="past the log's retention") as caught:
        await pages(log, position=found[-1].position)
    assert caught.value.reason == "POSITION_EXPIRED"
    assert keys(await pages(log)) == {(DEVICE.device, STREAM.name, 3)}


async def test_positions_that_are_none(log: MemoryLog) -> None:
    await log.append(frames([1]))
    good = (await pages(log))[-1].position
    other = (await pages(MemoryLog(FakeClock(), partitions=4)))[-1].position
    at = {"log": log.log_id}
    for bad in (
        "nonsense",
        good[:-2],
        other,
        encode_token({"at": "0 0 0 0"}),
        encode_token({**at, "at": "0 0 0"}),
        encode_token({**at, "at": "0 0 0 -1"}),
        encode_token({**at, "at": "0 0 0 ffff"}),
        encode_token({**at, "at": "0 0 0 x"}),
        encode_token({**at, "at": None}),
        encode_token(at),
    ):
        with pytest.raises(Invalid, match="position: not one that an export of this log gave out"):
            await pages(log, position=bad)


async def test_damage_ends_the_export_and_says_how_to_go_on() -> None:
    class DamagedLog(MemoryLog):
        async def read(self, partition: int, offset: int, max_bytes: int) -> Slice:
            if 2 <= offset < 4:
                raise Internal(
                    "records 2 to 3 can't be read", reason="SEGMENT_DAMAGED", metadata={"next_offset": "4"}
                )
            part = await super().read(partition, offset, max_bytes)
            return part if offset >= 4 else Slice(part.records[: 2 - offset], 2)

    log = DamagedLog(FakeClock(), partitions=1)
    await log.append(frames(range(1, 8)))
    found = []

    async def collect() -> None:
        async for page in export(log, ACME):
            found.append(page)

    with pytest.raises(Internal, match="records 2 to 3 can't be read") as caught:
        await collect()
    assert keys(found) == {(DEVICE.device, STREAM.name, n) for n in (1, 2)}
    past = caught.value.metadata["next_position"]
    assert re.search(re.escape(past), caught.value.message)
    assert keys(await pages(log, position=past)) == {(DEVICE.device, STREAM.name, n) for n in (5, 6, 7)}
