"""How long to wait before trying again."""

from dataclasses import dataclass

from libs.common.errors import Error
from libs.common.rand import Randomness
from libs.common.retry import backoff


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential with full jitter, the first retry included: a fleet that fails at once spreads out."""

    randomness: Randomness
    initial_s: float
    max_s: float

    def delay_s(self, attempt: int, error: Error | None = None) -> float:
        """Return the seconds to wait before retry `attempt` (0 is the first); at least what was asked for."""
        asked = error.retry_after_s or 0.0 if error is not None else 0.0
        return backoff(
            attempt,
            randomness=self.randomness,
            base_s=self.initial_s,
            cap_s=self.max_s,
            at_least_s=min(asked, self.max_s),
        )
