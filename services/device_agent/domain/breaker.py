"""When to stop asking: after several requests in a row that nobody answered in time."""

_AFTER = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Breaker:
    """Lets requests through until three in a row have been missed; then pauses, longer after each more.

    When a pause is over, one request goes as a trial: answered, it ends the row; missed, it begins the next
    pause, at most 30 s. Several may be under way when the row of misses is full: they neither lengthen the
    pause, or a handful that time out together would begin with a long one, nor make room for another trial.
    (Nygard, *Release It!*, "Circuit Breaker".)
    """

    def __init__(self) -> None:
        self._missed = 0
        self._resume_s = 0.0
        self._trial: int | None = None

    def lets(self, now_s: float, number: int) -> bool:
        """Tell whether request `number` may go now; then it is once `answered`, `missed` or `given_up`."""
        if not self.pauses:
            return True
        if self._trial is not None or now_s < self._resume_s:
            return False
        self._trial = number
        return True

    @property
    def pauses(self) -> bool:
        """Whether too many were missed in a row."""
        return self._missed >= _AFTER

    def answered(self) -> None:
        """Take note of an answer in time, to whichever request."""
        self._missed, self._trial = 0, None

    def given_up(self, number: int) -> None:
        """Take note that a request ended for another cause, or had ended: it tells nothing."""
        if number == self._trial:
            self._trial = None

    def missed(self, now_s: float, number: int, draw: float) -> None:
        """Take note that a request's time is over.

        Args:
            now_s: by the clock of `lets`.
            number: of the request.
            draw: 0 to 1, at random, so that devices don't come back together.
        """
        if self.pauses and number != self._trial:
            return
        self._trial = None
        self._missed += 1
        if self.pauses:
            longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._missed - _AFTER, 16))
            self._resume_s = now_s + longest_s * (0.5 + draw / 2)
