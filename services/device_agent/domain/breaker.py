"""When to stop asking: after several requests in a row that nobody answered in time."""

_AFTER = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Breaker:
    """Lets requests through until three in a row have been missed; then pauses, longer after each more.

    When a pause is over, one request goes as a trial: answered, it ends the row; missed, it begins the next
    pause, at most 30 s. (Nygard, *Release It!*, "Circuit Breaker".)
    """

    def __init__(self) -> None:
        self._missed = 0
        self._resume_s = 0.0
        self._on_trial = False

    def lets(self, now_s: float) -> bool:
        """Tell whether a request may go now; one that does is then `answered`, `missed` or `given_up`."""
        if not self.pauses:
            return True
        if self._on_trial or now_s < self._resume_s:
            return False
        self._on_trial = True
        return True

    @property
    def pauses(self) -> bool:
        """Whether too many were missed in a row."""
        return self._missed >= _AFTER

    def answered(self) -> None:
        """Take note of an answer in time."""
        self._missed, self._on_trial = 0, False

    def given_up(self) -> None:
        """Take note that a request ended for another cause: it tells nothing."""
        self._on_trial = False

    def missed(self, now_s: float, draw: float) -> None:
        """Take note that a request's time is over.

        Args:
            now_s: by the clock of `lets`.
            draw: 0 to 1, at random, so that devices don't come back together.
        """
        self._on_trial = False
        self._missed += 1
        if self.pauses:
            longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._missed - _AFTER, 16))
            self._resume_s = now_s + longest_s * (0.5 + draw / 2)
