"""What the file log makes of its files after crashes, damage and wrong use."""

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from libs.common.errors import Exhausted, Internal, OutOfRange, Precondition
from libs.common.testing import FakeClock
from services.gateway.tunnel.domain.frame import Device, Outcome
from services.gateway.tunnel.store import codec
from services.gateway.tunnel.store.files import FileLog
from services.gateway.tunnel.testing import DEVICE, STREAM, everything, frame, frames

Opener = Callable[..., Coroutine[Any, Any, FileLog]]


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "log/p-000").glob("*.seg"))


def sequences(records: list[Any]) -> list[int]:
    return [record.frame.sequence for record in records]


async def test_everything_is_there_after_closing(opener: Opener) -> None:
    log = await opener(segment_bytes=1024)
    for start in range(1, 100, 3):
        await log.append(frames(range(start, start + 3)))
    await log.close()
    log = await opener(segment_bytes=1024)
    assert sequences(await everything(log)) == list(range(1, 100))
    assert log.marks(DEVICE) == {STREAM: 99}
    assert (await log.append(frames([99, 100]))).outcomes == (Outcome.DUPLICATE, Outcome.STORED)
    await log.close()


async def test_a_log_keeps_its_id_and_its_partitions(opener: Opener) -> None:
    log = await opener(partitions=2)
    log_id = log.log_id
    await log.close()
    with pytest.raises(Precondition, match="with 2 partitions, not 3"):
        await opener(partitions=3)
    log = await opener(partitions=2)
    assert log.log_id == log_id
    await log.close()


async def test_a_second_opening_is_refused(opener: Opener) -> None:
    log = await opener()
    with pytest.raises(Precondition, match="open in another process") as caught:
        await opener()
    assert caught.value.reason == "LOG_IN_USE"
    await log.close()
    await (await opener()).close()


async def test_a_newer_format_is_refused(opener: Opener, tmp_path: Path) -> None:
    await (await opener()).close()
    path = tmp_path / "log/log.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(Precondition, match="format 2 is newer"):
        await opener()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}'])
async def test_a_damaged_description_is_named(opener: Opener, tmp_path: Path, content: str) -> None:
    await (await opener()).close()
    (tmp_path / "log/log.json").write_text(content)
    with pytest.raises(Internal, match=r"log\.json can't be read"):
        await opener()


async def test_a_missing_description_is_named(opener: Opener, tmp_path: Path) -> None:
    await (await opener()).close()
    (tmp_path / "log/log.json").unlink()
    with pytest.raises(Internal, match=r"log\.json is missing"):
        await opener()


async def _crash(log: FileLog, folder: Path, into: Path) -> None:
    """Copy the files as a crash would leave them: nothing was closed."""
    shutil.copytree(folder / "log", into / "log")
    await log.close()


async def test_a_tail_torn_at_every_byte_is_cut_and_written_again(
    opener: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await opener()
    await log.append(frames([1, 2]))
    (path,) = segments(tmp_path)
    whole = path.stat().st_size
    await log.append(frames([3]))
    await _crash(log, tmp_path, tmp_path / "crashed")
    crashed = tmp_path / "crashed/log"
    data = segments(tmp_path / "crashed")[0].read_bytes()
    for kept in range(whole, len(data)):
        shutil.rmtree(tmp_path / "log")
        shutil.copytree(crashed, tmp_path / "log")
        segments(tmp_path)[0].write_bytes(data[:kept])
        caplog.clear()
        log = await opener()
        assert log.marks(DEVICE) == {STREAM: 2}
        assert sequences(await everything(log)) == [1, 2]
        assert log.stats().torn_bytes == kept - whole
        assert ("cut a torn tail" in caplog.text) == (kept > whole)
        receipt = await log.append(frames([3, 4]))
        assert receipt.outcomes == (Outcome.STORED, Outcome.STORED)
        assert sequences(await everything(log)) == [1, 2, 3, 4]
        await log.close()


async def test_a_crash_while_a_segment_is_created(opener: Opener, tmp_path: Path) -> None:
    log = await opener()
    await log.append(frames([1, 2]))
    await _crash(log, tmp_path, tmp_path / "crashed")
    for size in range(codec.HEADER_BYTES):
        shutil.rmtree(tmp_path / "log")
        shutil.copytree(tmp_path / "crashed/log", tmp_path / "log")
        newborn = tmp_path / f"log/p-000/{2:020d}-00000000000000ff.seg"
        newborn.write_bytes(codec.segment_header(1)[:size])
        log = await opener()
        assert not newborn.exists()
        assert (await log.append(frames([2, 3]))).outcomes == (Outcome.DUPLICATE, Outcome.STORED)
        assert sequences(await everything(log)) == [1, 2, 3]
        await log.close()


async def _three_blocks(opener: Opener, tmp_path: Path, segment_bytes: int) -> list[int]:
    """Write three blocks, of sequences 1, 2-3 and 4; return the sizes of the first segment before each."""
    log = await opener(segment_bytes=segment_bytes)
    sizes = []
    for group in ([1], [2, 3], [4]):
        sizes.append(segments(tmp_path)[0].stat().st_size if segments(tmp_path) else codec.HEADER_BYTES)
        await log.append(frames(group))
    await log.close()
    return sizes


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


async def test_damage_in_the_middle_of_the_last_segment_is_told_and_nothing_is_cut(
    opener: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = await _three_blocks(opener, tmp_path, 1 << 20)
    (path,) = segments(tmp_path)
    _flip(path, sizes[1] + 50)
    before = path.read_bytes()
    for _ in range(2):
        caplog.clear()
        log = await opener()
        assert log.stats().quarantined == 1
        assert path.read_bytes() == before
        assert log.marks(DEVICE) == {STREAM: 4}
        assert sequences(list((await log.read(0, 0, 1 << 20)).records)) == [1]
        with pytest.raises(Internal, match="records 1 to 2 can't be read") as caught:
            await log.read(0, 1, 1 << 20)
        assert caught.value.reason == "SEGMENT_DAMAGED"
        assert caught.value.metadata["next_offset"] == "3"
        assert sequences(list((await log.read(0, 3, 1 << 20)).records)) == [4]
        await log.close()
    log = await opener()
    assert (await log.append(frames([5]))).outcomes == (Outcome.STORED,)
    assert sequences(list((await log.read(0, 4, 1 << 20)).records)) == [5]
    assert path.read_bytes() == before, "a quarantined segment isn't written any more"
    assert len(segments(tmp_path)) == 2
    await log.close()


async def test_damage_in_a_sealed_segment_is_told_when_it_is_read(opener: Opener, tmp_path: Path) -> None:
    log = await opener(segment_bytes=600)
    for sequence in range(1, 30):
        await log.append([frame(sequence)])
    await log.close()
    path = segments(tmp_path)[2]
    base = int(path.name[:20])
    _flip(path, codec.HEADER_BYTES + 40)
    log = await opener(segment_bytes=600)
    assert log.stats().quarantined == 0, "it hasn't been looked at"
    assert sequences(list((await log.read(0, base - 1, 1 << 20)).records)) == [base]
    with pytest.raises(Internal, match=f"records {base} to {base} can't be read") as caught:
        await log.read(0, base, 1 << 20)
    after = int(caught.value.metadata["next_offset"])
    assert sequences(list((await log.read(0, after, 1)).records)) == [after + 1]
    assert log.stats().quarantined == 1
    await log.close()
    log = await opener(segment_bytes=600)
    assert log.stats().quarantined == 1, "the next process knows"
    await log.close()


async def test_bytes_that_go_bad_under_an_open_log_are_noticed(opener: Opener, tmp_path: Path) -> None:
    log = await opener()
    for group in ([1], [2, 3], [4]):
        await log.append(frames(group))
    assert sequences(await everything(log)) == [1, 2, 3, 4]
    (path,) = segments(tmp_path)
    _flip(path, path.stat().st_size - 1)
    with pytest.raises(Internal, match="records 3 to 3 can't be read"):
        await log.read(0, 3, 1 << 20)
    assert sequences(list((await log.read(0, 0, 1 << 20)).records)) == [1, 2, 3]
    assert log.stats().quarantined == 1
    await log.append(frames([5]))
    assert sequences(list((await log.read(0, 4, 1 << 20)).records)) == [5]
    await log.close()


async def test_a_cut_end_of_a_cleanly_closed_log_is_damage_not_a_torn_tail(
    opener: Opener, tmp_path: Path
) -> None:
    await _three_blocks(opener, tmp_path, 1 << 20)
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    size = path.stat().st_size
    log = await opener()
    assert log.stats().quarantined == 1
    assert log.marks(DEVICE) == {STREAM: 4}, "the marks outlive it"
    assert path.stat().st_size == size
    with pytest.raises(Internal, match="records 3 to 3"):
        await log.read(0, 3, 1 << 20)
    assert (await log.append(frames([5]))).outcomes == (Outcome.STORED,)
    assert sequences(list((await log.read(0, 4, 1 << 20)).records)) == [5]
    await log.close()


async def test_a_lost_segment_is_damage(opener: Opener, tmp_path: Path) -> None:
    log = await opener(segment_bytes=600)
    for sequence in range(1, 30):
        await log.append([frame(sequence)])
    await log.close()
    lost, following = segments(tmp_path)[2:4]
    lost.unlink()
    log = await opener(segment_bytes=600)
    start, stop = int(lost.name[:20]), int(following.name[:20])
    with pytest.raises(Internal, match=f"records {start} to {stop - 1} can't be read"):
        await log.read(0, start, 1 << 20)
    assert sequences(list((await log.read(0, stop, 1)).records)) == [stop + 1]
    await log.close()


async def test_a_damaged_segment_header_harms_nothing_else(opener: Opener, tmp_path: Path) -> None:
    await _three_blocks(opener, tmp_path, 1 << 20)
    _flip(segments(tmp_path)[0], 3)
    log = await opener()
    assert sequences(await everything(log)) == [1, 2, 3, 4]
    await log.close()


async def test_lost_or_damaged_marks_are_built_again_from_whole_segments(
    opener: Opener, tmp_path: Path
) -> None:
    path = tmp_path / "log/p-000/marks"
    await _three_blocks(opener, tmp_path, 200)
    for spoil in (path.unlink, lambda: path.write_bytes(b"nonsense"), lambda: _flip(path, 20)):
        spoil()
        log = await opener(segment_bytes=200)
        assert log.marks(DEVICE) == {STREAM: 4}
        await log.close()


async def test_lost_marks_whose_segments_are_gone_are_not_invented(
    opener: Opener, clock: FakeClock, tmp_path: Path
) -> None:
    log = await opener(segment_bytes=200)
    for sequence in range(1, 10):
        await log.append([frame(sequence)])
    clock.advance(8 * 86400.0)
    assert await log.trim() == 9
    await log.append(frames([10]))
    await log.close()
    path = tmp_path / "log/p-000/marks"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(Internal, match="restore this file from a backup"):
        await opener(segment_bytes=200)
    path.unlink()
    with pytest.raises(Internal, match="marks is missing"):
        await opener(segment_bytes=200)
    path.write_bytes(whole)
    log = await opener(segment_bytes=200)
    assert log.marks(DEVICE) == {STREAM: 10}
    await log.close()


async def test_the_largest_log_loses_its_oldest_segments(opener: Opener, tmp_path: Path) -> None:
    log = await opener(segment_bytes=1000, retention_bytes=3000)
    for sequence in range(1, 101):
        await log.append([frame(sequence)])
    removed = await log.trim()
    assert removed > 0
    assert log.stats().bytes <= 3000
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 3000
    assert log.bounds()[0].earliest == removed
    assert sequences(await everything(log)) == list(range(removed + 1, 101))
    await log.close()
    log = await opener(segment_bytes=1000, retention_bytes=3000)
    assert log.marks(DEVICE) == {STREAM: 100}
    assert sequences(await everything(log)) == list(range(removed + 1, 101))
    await log.close()


async def test_a_reader_of_a_removed_segment_is_told(
    opener: Opener, clock: FakeClock, tmp_path: Path
) -> None:
    log = await opener(segment_bytes=200)
    for sequence in range(1, 10):
        await log.append([frame(sequence)])
    partition = log._partitions[0]
    victim = partition._segments[0]
    clock.advance(8 * 86400.0)
    await log.trim()
    with pytest.raises(OutOfRange, match="retention has removed it"):
        victim.read(0, 1, 1000)
    await log.close()


async def test_a_damaged_note_of_damage_is_made_again(opener: Opener, tmp_path: Path) -> None:
    sizes = await _three_blocks(opener, tmp_path, 1 << 20)
    (path,) = segments(tmp_path)
    _flip(path, sizes[1] + 50)
    await (await opener()).close()
    note = path.with_suffix(".damaged")
    for content in ("", "{", '{"damages": [[1]]}', '{"damages": 3}', "null"):
        note.write_text(content)
        log = await opener()
        assert log.stats().quarantined == 1
        await log.close()
        assert json.loads(note.read_text())["damages"] == [[1, 3, sizes[1]]]


async def test_a_folder_that_cannot_be_used_is_named(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    with pytest.raises(Precondition, match="can't be used as the log's folder") as caught:
        await opener()
    assert caught.value.reason == "DATA_DIR_UNUSABLE"


async def test_leftovers_of_a_crash_are_cleared(opener: Opener, tmp_path: Path) -> None:
    await (await opener()).close()
    leftover = tmp_path / "log/p-000/.marks.abc.tmp"
    leftover.write_bytes(b"half")
    await (await opener()).close()
    assert not leftover.exists()


async def test_many_appends_share_a_sync(opener: Opener, tmp_path: Path) -> None:
    log = await opener()
    devices = [Device("acme", f"phone-{number}") for number in range(50)]
    receipts = await asyncio.gather(*(log.append(frames([1, 2], device=device)) for device in devices))
    assert all(receipt.outcomes == (Outcome.STORED,) * 2 for receipt in receipts)
    data = segments(tmp_path)[0].read_bytes()
    salt = bytes.fromhex(segments(tmp_path)[0].stem[-16:])
    assert data.count(salt) < 50
    assert len(await everything(log)) == 100
    await log.close()


async def test_a_full_queue_is_refused_and_nothing_of_it_kept(opener: Opener) -> None:
    log = await opener(queue_bytes=2000)
    first = asyncio.create_task(log.append(frames(range(1, 6))))
    await asyncio.sleep(0)
    with pytest.raises(Exhausted, match="waiting to be written") as caught:
        await log.append(frames(range(6, 11)))
    assert (caught.value.reason, caught.value.retriable) == ("LOG_BUSY", True)
    await first
    assert log.marks(DEVICE) == {STREAM: 5}
    assert (await log.append(frames(range(6, 11)))).marks == {STREAM: 10}
    await log.close()


async def test_damage_is_logged_as_an_error(
    opener: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = await _three_blocks(opener, tmp_path, 1 << 20)
    _flip(segments(tmp_path)[0], sizes[1] + 50)
    await (await opener()).close()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["is damaged at byte" in record.getMessage() for record in errors] == [True]
