"""The store's transactions, over the one implementation there is (its package says why)."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from libs.common.errors import Exhausted, Precondition, Unavailable
from libs.common.testing import FakeClock
from services.device_agent.store import events, values
from services.device_agent.store.database import Database
from services.device_agent.testing.store import event


@pytest.fixture
async def database(tmp_path):
    database = Database(tmp_path / "agent.db")
    await database.open()
    yield database
    await database.close()


async def test_one_failing_function_undoes_its_own_writes_only(database):
    def fails(connection):
        values.set_int(connection, "bad", 1)
        raise ValueError("no")

    outcomes = await asyncio.gather(
        database.run(lambda c: values.set_int(c, "a", 1)),
        database.run(fails),
        database.run(lambda c: values.set_int(c, "b", 2)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], ValueError)
    assert [await database.run(lambda c, k=k: values.get_int(c, k)) for k in ("a", "bad", "b")] == [1, 0, 2]


async def test_functions_run_in_the_order_of_their_calls(database):
    order = []
    await asyncio.gather(
        *(database.run(lambda c, i=i: order.append(i), durable=i % 3 == 0) for i in range(200))
    )
    assert order == list(range(200))


async def test_a_cancelled_caller_does_not_undo_its_work_nor_disturb_others(database):
    task = asyncio.create_task(database.run(lambda c: values.set_int(c, "a", 1)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await database.run(lambda c: values.get_int(c, "a")) == 1


async def test_a_full_disk_is_told_as_such_and_nothing_is_written(database):
    await database.run(lambda c: c.execute("PRAGMA max_page_count=60"))
    big = [event(i, text="x" * 1000) for i in range(1000)]
    with pytest.raises(Exhausted) as full:
        await database.run(lambda c: events.add_events(c, big, 0.0))
    assert full.value.reason == "DISK_FULL"
    assert await database.run(lambda c: events.read_events(c, 0, 10)) == []
    await database.run(lambda c: c.execute("PRAGMA max_page_count=100000"))
    assert await database.run(lambda c: events.add_events(c, big, 0.0)) == (1000, 0)


async def test_each_caller_of_a_group_hears_of_the_full_disk_and_it_is_told_until_something_is_written(
    tmp_path,
):
    told = []
    database = Database(tmp_path / "agent.db", tell=told.append)
    await database.open()
    await database.run(lambda c: c.execute("PRAGMA max_page_count=60"))
    big = [event(i, text="x" * 1000) for i in range(1000)]
    refused = await asyncio.gather(
        database.run(lambda c: values.set_int(c, "a", 1)),
        database.run(lambda c: events.add_events(c, big, 0.0)),
        return_exceptions=True,
    )
    assert refused[1].reason == told[0].reason == "DISK_FULL"
    assert refused[1].retry_after_s > 0
    assert await database.run(lambda c: events.read_events(c, 0, 10)) == []
    assert told[-1] is not None  # reading proves nothing
    await database.run(lambda c: c.execute("PRAGMA max_page_count=100000"))
    await database.probe()
    assert told[-1] is None
    await database.close()


async def test_what_has_to_be_stored_waits_for_room(tmp_path):
    clock = FakeClock()
    database = Database(tmp_path / "agent.db", clock)
    await database.open()
    await database.run(lambda c: c.execute("PRAGMA max_page_count=60"))
    big = [event(i, text="x" * 1000) for i in range(1000)]
    stored = asyncio.create_task(database.insist(lambda c: events.add_events(c, big, 0.0)))
    for _ in range(3):
        await clock.wait_for_sleepers()
        clock.advance(1.0)
    await clock.wait_for_sleepers()
    await database.run(lambda c: c.execute("PRAGMA max_page_count=100000"))
    assert not stored.done()
    clock.advance(1.0)
    assert await stored == (1000, 0)
    with pytest.raises(ZeroDivisionError):
        await database.insist(lambda c: 1 // 0)
    await database.close()


async def test_a_store_that_another_program_holds_refuses_and_goes_on(database, tmp_path):
    await database.run(lambda c: c.execute("PRAGMA busy_timeout=0"))
    other = sqlite3.connect(tmp_path / "agent.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="other program") as held:
        await database.run(lambda c: values.set_int(c, "a", 1))
    assert held.value.reason == "STORE_IO"
    assert await database.run(lambda c: values.get_int(c, "a")) == 0
    other.execute("ROLLBACK")
    other.close()
    await database.run(lambda c: values.set_int(c, "a", 1))


async def test_a_closed_store_refuses(tmp_path):
    database = Database(tmp_path / "agent.db")
    await database.open()
    await database.run(lambda c: values.set_int(c, "a", 1))
    await database.close()
    await database.close()
    with pytest.raises(Unavailable):
        await database.run(lambda c: None)
    await database.open()
    assert await database.run(lambda c: values.get_int(c, "a")) == 1
    await database.close()


async def test_a_newer_schema_is_refused_with_a_remedy(tmp_path):
    connection = sqlite3.connect(tmp_path / "agent.db")
    connection.execute("PRAGMA user_version=999")
    connection.close()
    with pytest.raises(Precondition, match="newer agent"):
        await Database(tmp_path / "agent.db").open()


async def test_a_damaged_file_is_told_with_a_remedy(tmp_path):
    (tmp_path / "agent.db").write_bytes(b"not a database at all, " * 100)
    with pytest.raises(Precondition, match="move it out"):
        await Database(tmp_path / "agent.db").open()


def test_what_was_answered_survives_a_kill(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from libs.task.event import Event
        from services.device_agent.store import events
        from services.device_agent.store.database import Database
        async def main():
            database = Database(Path(sys.argv[1]))
            await database.open()
            number = 0
            while True:
                batch = [Event(f"e{number + i}", "go", "", "u", 1.0) for i in range(3)]
                await database.run(lambda c: events.add_events(c, batch, 0.0))
                number += 3
                print(number, flush=True)
        asyncio.run(main())
        """
    )
    path = tmp_path / "agent.db"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        acknowledged = 0
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged >= 300:
                process.kill()
                break
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT COUNT(*) FROM events").fetchone()
    connection.close()
    assert count >= acknowledged
    assert count % 3 == 0
