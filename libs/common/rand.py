"""Randomness, injected: ids, salts and jitter (`libs.common.testing.FakeRandomness` in tests)."""

import random
import secrets
from typing import Protocol

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


class Randomness(Protocol):
    """Where unpredictable bytes, numbers and ids come from."""

    def bytes(self, n: int) -> bytes:
        """Return `n` unpredictable bytes."""
        ...

    def uniform(self, a: float, b: float) -> float:
        """Return a number between `a` and `b`, for jitter (not for secrets)."""
        ...

    def id(self, n: int = 16) -> str:
        """Return an id of `n` characters out of [a-z0-9]; 16 of them hold 82 bits."""
        ...


class SystemRandomness:
    """The operating system's randomness; safe for secrets."""

    def bytes(self, n: int) -> bytes:
        """Return `n` bytes from the operating system."""
        return secrets.token_bytes(n)

    def uniform(self, a: float, b: float) -> float:
        """Return a number between `a` and `b`."""
        return random.uniform(a, b)

    def id(self, n: int = 16) -> str:
        """Return `n` characters out of [a-z0-9]."""
        return "".join(secrets.choice(ID_ALPHABET) for _ in range(n))
