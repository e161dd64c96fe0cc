"""Users of the machine that workers run as: each worker has one of its own while it is there.

What one worker has, another can't touch; none gets at the runner's key; and what a worker started can be
found by its user, whatever it did to hide.
"""

import re
from collections.abc import Iterable

from libs.common.errors import Exhausted, Invalid

_FIRST = 1000
_MOST = 2**31 - 2


class Users:
    """A range of user ids that nobody else uses."""

    def __init__(self, first: int, last: int) -> None:
        self._ids = range(first, last + 1)
        self._taken: set[int] = set()
        self._next = 0

    @staticmethod
    def parse(text: str) -> "Users | None":
        """Return the users of "200000-200999"; None for "".

        Raises:
            Invalid: when it is no such range.
        """
        if not text:
            return None
        match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text, re.ASCII)
        if match is None or not _FIRST <= int(match[1]) <= int(match[2]) <= _MOST:
            raise Invalid(
                f"--worker-users: {text[:80]!r} is no range of ids such as 200000-200999, from {_FIRST} up"
            )
        return Users(int(match[1]), int(match[2]))

    def take(self) -> int:
        """Return an id that no worker has, the one that was free for longest; raise Exhausted."""
        for offset in range(len(self._ids)):
            user_id = self._ids[(self._next + offset) % len(self._ids)]
            if user_id not in self._taken:
                self._taken.add(user_id)
                self._next = (self._next + offset + 1) % len(self._ids)
                return user_id
        raise Exhausted(f"all {len(self._ids)} users that workers may run as are taken; widen --worker-users")

    def hold(self, user_ids: Iterable[int]) -> None:
        """Note ids that workers of an earlier runner have."""
        self._taken.update(user_ids)

    def free(self, user_id: int) -> None:
        """Take an id back; nothing of its worker is left."""
        self._taken.discard(user_id)
