"""The decision that belongs to the mirror's state, made once for each revision and seen by all."""

from collections.abc import Callable

from libs.common.clock import Clock
from services.scheduler.domain.decide import Decision, decide
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, JobState
from services.scheduler.domain.reasons import NOT_CONSIDERED, Reason
from services.scheduler.domain.snapshot import Snapshot


class Decisions:
    """Decides when asked, and remembers: every replica tells why a job waits, only the leader acts."""

    def __init__(self, mirror: Mirror, clock: Clock, on_decided: Callable[[float], None]) -> None:
        """`on_decided` is told the seconds that a decision took."""
        self._mirror = mirror
        self._clock = clock
        self._on_decided = on_decided
        self._last: tuple[Snapshot, Decision] | None = None

    def now(self) -> Decision:
        """Return the decision at the mirror's revision."""
        snapshot, now = self._mirror.snapshot, self._clock.now()
        if self._last is not None and self._last[0] is snapshot:
            recheck = self._last[1].recheck_time
            if recheck is None or now < recheck:
                return self._last[1]
        begun = self._clock.monotonic()
        decision = decide(snapshot, now)
        self._on_decided(self._clock.monotonic() - begun)
        self._last = (snapshot, decision)
        return decision

    def why(self, job: Job) -> tuple[Reason, ...]:
        """Return why a job waits; nothing when it doesn't."""
        if job.status.state is not JobState.PENDING:
            return ()
        return self.now().pending.get(job.name, (NOT_CONSIDERED,))
