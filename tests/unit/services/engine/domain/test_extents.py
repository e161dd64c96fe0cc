"""Formulas evaluate as what they were written as, and bounds hold at every size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.runtime import extents as runtime_extents
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent, contiguous_strides, maximum, minimum, product
from services.engine.domain.table import ExtentTable

N, M = Extent.dimension("n"), Extent.dimension("m")
BOUNDS = Bounds({"n": (1, 6), "m": (2, 5)})

leaves = st.one_of(
    st.integers(-5, 5).map(lambda value: (Extent.of(value), lambda sizes: value)),
    st.sampled_from(["n", "m"]).map(lambda name: (Extent.dimension(name), lambda sizes: sizes[name])),
)


def _join(parts):
    operator, (a, f), (b, g) = parts
    made = {
        "+": lambda: (a + b, lambda sizes: f(sizes) + g(sizes)),
        "-": lambda: (a - b, lambda sizes: f(sizes) - g(sizes)),
        "*": lambda: (a * b, lambda sizes: f(sizes) * g(sizes)),
        "min": lambda: (minimum(a, b), lambda sizes: min(f(sizes), g(sizes))),
        "max": lambda: (maximum(a, b), lambda sizes: max(f(sizes), g(sizes))),
        "//": lambda: (a // maximum(b, 1), lambda sizes: f(sizes) // max(g(sizes), 1)),
        "%": lambda: (a % maximum(b, 1), lambda sizes: f(sizes) % max(g(sizes), 1)),
    }
    return made[operator]()


formulas = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "min", "max", "//", "%"]), inner, inner).map(
        _join
    ),
    max_leaves=6,
)


@given(formulas)
def test_formulas_evaluate_and_bounds_hold_at_every_size(pair) -> None:
    extent, function = pair
    low, high = BOUNDS.range(extent)
    table = ExtentTable(["n", "m"])
    place = table.index(extent)
    for n in range(1, 7):
        for m in range(2, 6):
            value = function({"n": n, "m": m})
            assert extent.evaluate({"n": n, "m": m}) == value
            assert low <= value <= high
            assert runtime_extents.evaluate(table.extents, [n, m])[place] == value
    if BOUNDS.at_least(extent, 0):
        assert BOUNDS.refute_at_least(extent, 0) is None


@given(formulas, formulas)
def test_equal_sums_have_one_form(first, second) -> None:
    a, b = first[0], second[0]
    assert a + b == b + a
    assert (a + b) - b == a
    assert hash(a * b) == hash(b * a)


@pytest.mark.parametrize(
    ("extent", "divisor", "quotient"),
    [
        (6 * N * M, 2 * N, 3 * M),
        (N * M + N, M + 1, N),
        (N * N - 1, N + 1, N - 1),
        (N + 1, N, None),
        (3 * N, Extent.of(2), None),
        (Extent.of(0), N, Extent.of(0)),
    ],
)
def test_quotients_are_exact_or_none(extent: Extent, divisor: Extent, quotient: Extent | None) -> None:
    assert extent.exact_quotient(divisor) == quotient


def test_strides_and_products() -> None:
    assert contiguous_strides((N, M, Extent.of(4))) == (4 * M, Extent.of(4), Extent.of(1))
    assert product((N, 3, M)) == 3 * N * M
    assert str(2 * N * M - N + 1) == "2*m*n - n + 1"


def test_equal_formulas_take_one_place() -> None:
    table = ExtentTable(["n", "m"])
    assert table.index(N * M) == table.index(M * N)
    count = len(table.extents)
    table.index(N * M + 1 - 1)
    assert len(table.extents) == count
    with pytest.raises(KeyError):
        table.index(Extent.dimension("k"))
