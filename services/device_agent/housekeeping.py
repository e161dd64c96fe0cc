"""What has to be done from time to time: retention, bounds of the queues, health of idle versions."""

import sqlite3
from dataclasses import replace

from libs.common.clock import Clock
from libs.common.errors import Error
from libs.common.rand import Randomness
from libs.task.manifest import CheckedHealth
from services.device_agent.domain.retention import RetentionPolicy, decide_cut
from services.device_agent.domain.rollout import State, Verdict, Version, idle_left, judge
from services.device_agent.identity import CloudClock
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import events as event_store
from services.device_agent.store import frames as frame_store
from services.device_agent.store import versions as version_store
from services.device_agent.store.database import Database
from services.device_agent.store.trouble import passes
from services.device_agent.store.versions import Moment
from services.device_agent.tasks import Tasks

_RESTARTS = 16


class Housekeeper:
    """Does the rounds."""

    def __init__(
        self,
        database: Database,
        tasks: Tasks,
        clock: Clock,
        cloud_clock: CloudClock,
        randomness: Randomness,
        problems: Problems,
        *,
        retention: RetentionPolicy,
        max_tombstones: int,
        interval_s: float,
        reports: Bell,
        frames: Bell,
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._clock = clock
        self._cloud_clock = cloud_clock
        self._random = randomness
        self._problems = problems
        self._retention = retention
        self._max_tombstones = max_tombstones
        self._interval_s = interval_s
        self._reports = reports
        self._frames = frames
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Do a round every interval, and when a version's idle time is over."""
        while True:
            seen = self._tasks.changed.rings
            await self._tasks.changed.wait_or_sleep(seen, self._clock, self._next_s())
            try:
                await self._database.probe()
                await self.judge_idle()
                await self.cut_events()
                await self.bound_streams()
            except Error as error:
                if not passes(error):  # else the store has said so
                    raise

    def _next_s(self) -> float:
        left = [
            idle_left(version, installed.manifest.health)
            for version in self._tasks.running().values()
            if version.state is State.ACTIVE
            and not version.failures_in_a_row
            and (installed := self._tasks.installed.get(version.key))
        ]
        return min([self._interval_s, *left])

    async def judge_idle(self) -> None:
        """Add to the time that unconfirmed versions have run; confirm those that ran long enough unharmed."""
        changed = False
        now = self._clock.monotonic()
        since, self._since = self._since, {}
        for version in self._tasks.running().values():
            installed = self._tasks.installed.get(version.key)
            if version.state is not State.ACTIVE or installed is None:
                continue
            self._since[version.key] = now
            elapsed_s = now - since.get(version.key, now)
            moment = self._tasks.moment()
            health = installed.manifest.health

            def work(
                connection: sqlite3.Connection,
                version: Version = version,
                moment: Moment = moment,
                elapsed_s: float = elapsed_s,
                health: CheckedHealth = health,
            ) -> bool:
                known = version_store.find_version(connection, version.task, version.version)
                if known is None or known.state is not State.ACTIVE:
                    return False
                known = replace(known, idle_s=known.idle_s + elapsed_s)
                version_store.save_counts(connection, known)
                if judge(known, health) is not Verdict.CONFIRM:
                    return False
                version_store.confirm(connection, known, moment)
                return True

            changed |= await self._database.run(work)
        if changed:
            self._reports.ring()
        await self._tasks.refresh_counts()

    async def cut_events(self) -> None:
        """Delete events that nothing needs or that are over the bounds."""
        now_s = self._cloud_clock.now_s()
        horizon_s = self._tasks.horizon_s()

        def work(connection: sqlite3.Connection) -> tuple[int, bool]:
            count, size = event_store.stored_size(connection)
            cut = decide_cut(self._retention, count=count, size_bytes=size, horizon_s=horizon_s, now_s=now_s)
            return event_store.cut_events(connection, cut, now_s - horizon_s)

        count, missed = await self._database.run(work)
        if missed:
            text = (
                f"the bounds on events (--max-events, --max-event-bytes) cut {count} events that windows or "
                f"triggers still look back to ({horizon_s:.0f} s); raise them, or ask the task's author"
            )
            self._problems.set("events", text, "WINDOW_CUT")
        elif count:
            self._problems.clear("events")

    async def bound_streams(self) -> None:
        """Forget streams that are done with; start anew those that have collected too many tombstones."""
        dropped = await self._tasks.drop_streams()
        epochs = [self._random.bytes(16) for _ in range(_RESTARTS)]
        restarted = await self._database.run(
            lambda connection: frame_store.restart_streams(connection, self._max_tombstones, epochs)
        )
        for stream in restarted:
            text = f"more than {self._max_tombstones} entries waited; they were dropped, and it begins anew"
            self._problems.set(f"stream {stream}", text, "STREAM_RESTARTED")
        if restarted or dropped:
            self._frames.ring()
