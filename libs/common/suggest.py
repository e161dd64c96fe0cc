"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable

# Comparing is quadratic in the lengths, and a caller chooses the name: bound it.
_LONGEST = 128


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `name`, or None when none is near."""
    if len(name) > _LONGEST:
        return None
    by_folded = {k.casefold(): k for k in sorted(known, reverse=True) if len(k) <= _LONGEST}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` to append to a message, or `""` when nothing known is near `name`."""
    near = closest(name, known)
    return f"; did you mean {near!r}?" if near is not None else ""
