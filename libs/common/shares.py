"""Sharing out something bounded, so that nobody can take all of it while others come for theirs."""


class Shares:
    """Hands out parts of a bounded amount to owners, at once or not at all. Belongs to one event loop.

    An owner may hold as much as it leaves free: alone half of all, two a third each, three a quarter each. So
    something is left for whoever comes next, and nobody has to say how many owners there are. These are the
    dynamic thresholds of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6(2), 1998) with a factor
    of 1.

    Attributes:
        limit: all that there is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._by_owner: dict[str, int] = {}

    @property
    def held(self) -> int:
        """What all owners hold together."""
        return self._held

    def held_by(self, owner: str) -> int:
        """Return what an owner holds."""
        return self._by_owner.get(owner, 0)

    def take(self, owner: str, amount: int = 1) -> bool:
        """Take `amount` for `owner`; return False, having taken nothing, when it may not have that.

        Whoever holds nothing may take anything that is free; when all is free, more than there is.
        """
        mine, left = self.held_by(owner), self.limit - self._held - amount
        if self._held and (left < 0 or (mine and mine + amount > left)):
            return False
        self._held += amount
        self._by_owner[owner] = mine + amount
        return True

    def give_back(self, owner: str, amount: int = 1) -> None:
        """Give back what was taken."""
        self._held -= amount
        left = self._by_owner[owner] - amount
        if left:
            self._by_owner[owner] = left
        else:
            del self._by_owner[owner]  # owners are many, and come and go
