"""Bounds are tight enough to prove what plans need, and refute with sizes; that they hold: test_extents."""

import pytest

from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent

N, M = Extent.dimension("n"), Extent.dimension("m")
BOUNDS = Bounds({"n": (1, 6), "m": (2, 5)})


def test_bounds_of_products_and_floors_are_tight() -> None:
    assert BOUNDS.range((N - 1) * (N - 1)) == (0, 25)
    assert BOUNDS.at_least(N * M - N, 0)
    # A window of 3 in steps of 2 never reaches beyond n + 3.
    windows = (N + 3 - 3) // 2 + 1
    assert BOUNDS.at_least(N + 3 - ((windows - 1) * 2 + 3), 0)


def test_what_is_less_somewhere_is_refuted_with_sizes() -> None:
    assert BOUNDS.refute_at_least(N - 3, 0) == {"n": 1}
    assert BOUNDS.refute_at_least(N - 1, 0) is None
    with pytest.raises(ZeroDivisionError):
        BOUNDS.refute_at_least(M // (N - 1), 0)
