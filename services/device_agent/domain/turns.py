"""Who gets one of a few places when more want one."""

from collections.abc import Iterable


class Turns:
    """Hands out places: first to those who wait for one, among them to those who had one longest ago.

    Args:
        places: how many there are.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._turn = 0
        self._last: dict[str, int] = {}

    def choose(self, candidates: Iterable[tuple[str, bool]]) -> frozenset[str]:
        """Return who gets a place this time.

        Args:
            candidates: everybody's name, and whether they wait; whoever isn't among them is forgotten.
        """
        waits = dict(candidates)
        self._last = {name: turn for name, turn in self._last.items() if name in waits}
        order = sorted(waits, key=lambda name: (not waits[name], self._last.get(name, 0), name))
        self._turn += 1
        chosen = frozenset(order[: self._places])
        self._last |= dict.fromkeys(chosen, self._turn)
        return chosen
