import asyncio
from pathlib import Path

import pytest

from libs.common.clock import SystemClock
from libs.common.errors import NotFound
from libs.common.testing import FakeClock
from services.scheduler.runner.log_sender import PIECE_BYTES, LogSender

FAST = 2.0**40


class Log:
    """What a scheduler has of a log."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.calls: list[tuple[int, int, bool]] = []
        self.grown = asyncio.Event()

    async def append(self, offset: int, data: bytes, last: bool) -> int:
        self.calls.append((offset, len(data), last))
        assert offset <= len(self.durable)
        self.durable += data[len(self.durable) - offset :]
        self.grown.set()
        return len(self.durable)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_all_of_a_complete_file_is_sent_in_pieces(tmp_path: Path, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    (tmp_path / "log").write_bytes(content)
    log = Log()
    sender = LogSender(tmp_path / "log", log.append, SystemClock(), FAST)
    sender.complete()
    await sender.run()
    assert log.durable == content
    assert [last for _, _, last in log.calls] == [False] * (len(log.calls) - 1) + [True]
    assert max(length for _, length, _ in log.calls) <= PIECE_BYTES


async def test_what_the_scheduler_has_isnt_sent_twice(tmp_path: Path) -> None:
    content = bytes(index % 251 for index in range(3 * PIECE_BYTES))
    (tmp_path / "log").write_bytes(content)
    log = Log(content[: 2 * PIECE_BYTES + 7])
    sender = LogSender(tmp_path / "log", log.append, SystemClock(), FAST)
    sender.complete()
    await sender.run()
    assert log.durable == content
    assert [offset for offset, _, _ in log.calls] == [0, 2 * PIECE_BYTES + 7]


async def test_what_the_scheduler_lost_is_sent_anew(tmp_path: Path) -> None:
    content = bytes(index % 251 for index in range(3 * PIECE_BYTES))
    (tmp_path / "log").write_bytes(content)

    class Moved(Log):
        """After two pieces another scheduler answers, which has none of the log and says so."""

        async def append(self, offset: int, data: bytes, last: bool) -> int:
            if len(self.calls) == 2:
                self.durable = b""
            if offset > len(self.durable):
                self.calls.append((offset, len(data), last))
                return len(self.durable)
            return await super().append(offset, data, last)

    log = Moved()
    sender = LogSender(tmp_path / "log", log.append, SystemClock(), FAST)
    sender.complete()
    await sender.run()
    assert log.durable == content


async def test_a_file_that_grows_is_followed(tmp_path: Path) -> None:
    path, log = tmp_path / "log", Log()
    sender = LogSender(path, log.append, SystemClock(), FAST)
    sending = asyncio.create_task(sender.run())
    path.write_bytes(b"one")
    await log.grown.wait()
    assert log.durable == b"one"
    with path.open("ab") as file:
        file.write(b"two")
    sender.complete()
    await sending
    assert log.durable == b"onetwo"


async def test_a_worker_that_wrote_nothing_has_an_empty_log(tmp_path: Path) -> None:
    log = Log()
    sender = LogSender(tmp_path / "none", log.append, SystemClock(), FAST)
    sender.complete()
    await sender.run()
    assert log.calls == [(0, 0, True)]


async def test_no_more_is_sent_a_second_than_may_be(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(2 * PIECE_BYTES))
    clock, log = FakeClock(), Log()
    sender = LogSender(tmp_path / "log", log.append, clock, PIECE_BYTES / 8)
    sender.complete()
    sending = asyncio.create_task(sender.run())
    for sent in (1, 2):
        await clock.wait_for_sleepers()
        assert len(log.durable) == sent * PIECE_BYTES
        clock.advance(7.9)
        await asyncio.sleep(0)
        assert len(log.calls) == sent
        clock.advance(0.2)
    await sending
    assert log.calls[-1] == (2 * PIECE_BYTES, 0, True)


async def test_a_log_that_nobody_wants_is_given_up(tmp_path: Path) -> None:
    async def refuse(offset: int, data: bytes, last: bool) -> int:
        raise NotFound("no such job")

    (tmp_path / "log").write_bytes(b"x")
    with pytest.raises(NotFound):
        await LogSender(tmp_path / "log", refuse, SystemClock(), FAST).run()
