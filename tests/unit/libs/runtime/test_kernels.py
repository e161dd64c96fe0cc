"""Each operator against a plain definition of it, over types, shapes, strides and special values."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS, Atomic
from libs.runtime.elements import family
from libs.runtime.kernels import build_compute
from libs.runtime.layout import ComputeLayout, Strided
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder

F32, F16, I32, I64, U8, BOOL = (
    DataType.FLOAT32, DataType.FLOAT16, DataType.INT32, DataType.INT64, DataType.UINT8, DataType.BOOL,
)  # fmt: skip


def _run(
    name: str,
    inputs: list[tuple[npt.ArrayLike, DataType]],
    shape: list[int],
    *,
    axes: list[int] | None = None,
    out: DataType | None = None,
) -> npt.NDArray[Any]:
    plan = PlanBuilder()
    arrays = [np.asarray(values, DTYPES[type_]) for values, type_ in inputs]
    pairs = zip(arrays, inputs, strict=True)
    tensors = [plan.input(f"i{i}", array.shape, type_) for i, (array, (_, type_)) in enumerate(pairs)]
    plan.output("y", plan.compute(name, tensors, shape, axes=axes or (), type_=out, origin="n (Node)"))
    return Program(plan.build()).run({f"i{i}": array for i, array in enumerate(arrays)})["y"]


SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, -2.5, 1e30, -1e30, math.inf, -math.inf, math.nan, 0.3, 7.25]
UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "floor": lambda x: math.floor(x) if math.isfinite(x) else x,
    "round": lambda x: round(x) if math.isfinite(x) else x,
    "exp": lambda x: math.inf if x > 80 else math.exp(x),
    "log": lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan,
    "tanh": math.tanh,
    "erf": math.erf,
    "sin": lambda x: math.sin(x) if math.isfinite(x) else math.nan,
    "cos": lambda x: math.cos(x) if math.isfinite(x) else math.nan,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_floats(name: str) -> None:
    values = [v for v in SPECIAL if abs(v) < 1e29 or not math.isfinite(v) or name not in ("sin", "cos")]
    exact = [float(np.float32(v)) for v in values]
    expected = [float(UNARY[name](v)) for v in exact]
    np.testing.assert_allclose(_run(name, [(values, F32)], [len(values)]), expected, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name, atomic in ATOMICS.items() if atomic.types.startswith("f")])
def test_every_operator_takes_each_float_type_it_says(name: str) -> None:
    atomic = ATOMICS[name]
    for type_ in (F16, F32, DataType.FLOAT64):
        out = {"same": type_, "any": type_, "bool": BOOL, "index": I64}[atomic.result]
        inputs: list[tuple[npt.ArrayLike, DataType]] = [([[0.5, 0.25], [0.75, 1.0]], type_)] * atomic.arity
        if name == "where":
            inputs[0] = ([[True, False], [False, True]], BOOL)
        if name == "gather":
            inputs[1] = ([[0, 1], [1, -1]], I64)
        if atomic.kind == "scatter":
            inputs[1] = ([1, -2], I64)
        axes = [0] if atomic.kind in ("reduce", "gather", "scan", "sort") else []
        shape = {"reduce": [2], "gather": [2, 2, 2]}.get(atomic.kind, [2, 2])
        result = _run(name, inputs, shape, axes=axes, out=out)
        assert result.dtype == DTYPES[out]
        assert result.shape == tuple(shape)


@pytest.mark.parametrize("name", [name for name, atomic in ATOMICS.items() if "i" in atomic.types])
def test_every_operator_takes_each_integer_type_it_says(name: str) -> None:
    atomic = ATOMICS[name]
    for type_ in [t for t in DataType if family(t) == "i"]:
        out = {"same": type_, "any": type_, "bool": BOOL, "index": I64}[atomic.result]
        inputs: list[tuple[npt.ArrayLike, DataType]] = [([[1, 2], [3, 4]], type_)] * atomic.arity
        if name == "where":
            inputs[0] = ([[True, False], [False, True]], BOOL)
        if name == "gather":
            inputs[1] = ([[0, 1], [1, -1]], I32)
        if atomic.kind == "scatter":
            inputs[1] = ([1, -2], I64)
        axes = [0] if atomic.kind in ("reduce", "gather", "scan", "sort") else []
        shape = {"reduce": [2], "gather": [2, 2, 2]}.get(atomic.kind, [2, 2])
        assert _run(name, inputs, shape, axes=axes, out=out).dtype == DTYPES[out]


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_integer_division_and_remainders() -> None:
    pairs = list(itertools.product([-7, -6, -1, 0, 1, 6, 7], [-3, -2, -1, 1, 2, 3]))
    a, b = [list(side) for side in zip(*pairs, strict=True)]
    inputs: list[tuple[npt.ArrayLike, DataType]] = [(a, I32), (b, I32)]
    assert _run("div", inputs, [len(a)]).tolist() == [_truncated(x, y) for x, y in pairs]
    assert _run("mod", inputs, [len(a)]).tolist() == [x % y for x, y in pairs]


def test_the_lowest_integer_by_minus_1_wraps() -> None:
    assert _run("div", [([-(2**31)], I32), ([-1], I32)], [1]).tolist() == [-(2**31)]


@pytest.mark.parametrize("name", ["div", "mod"])
def test_an_integer_by_0_is_refused_and_names_the_node(name: str) -> None:
    with pytest.raises(Invalid, match=r"steps\[0\] \(n \(Node\)\): an integer is divided by 0") as caught:
        _run(name, [([1, 2], I64), ([1, 0], I64)], [2])
    assert caught.value.reason == "BAD_INPUT"


def test_float_remainders_and_division_by_0() -> None:
    assert _run("mod", [([-5.5], F32), ([3.0], F32)], [1]).tolist() == [0.5]
    assert _run("div", [([1.0, -1.0], F32), ([0.0, 0.0], F32)], [2]).tolist() == [math.inf, -math.inf]


def test_integer_powers() -> None:
    assert _run("pow", [([2, -1, -1, 1, 5, -3], I32), ([10, -3, -2, -9, -1, 3], I32)], [6]).tolist() == [
        1024, -1, 1, 1, 0, -27,
    ]  # fmt: skip
    with pytest.raises(Invalid, match="negative power"):
        _run("pow", [([0], I32), ([-1], I32)], [1])


def test_nan_wins_in_maximum_and_minimum() -> None:
    for name in ("max", "min"):
        assert np.isnan(_run(name, [([math.nan, 1.0], F32), ([1.0, math.nan], F32)], [2])).all()
    for name in ("reduce_max", "reduce_min"):
        assert np.isnan(_run(name, [([1.0, math.nan], F32)], [], axes=[0]))


def test_casts() -> None:
    assert _run("cast", [([1.9, -1.9, 0.0], F32)], [3], out=I32).tolist() == [1, -1, 0]
    assert _run("cast", [([0.5, 0.0, math.nan], F32)], [3], out=BOOL).tolist() == [True, False, True]
    assert _run("cast", [([True, False], BOOL)], [2], out=F16).tolist() == [1.0, 0.0]
    assert _run("cast", [([300, -1], I32)], [2], out=U8).tolist() == [44, 255]


def test_where() -> None:
    inputs: list[tuple[npt.ArrayLike, DataType]] = [([True, False], BOOL), ([1, 2], I64), ([3, 4], I64)]
    assert _run("where", inputs, [2], out=I64).tolist() == [1, 4]


def test_reductions_keep_the_type_and_wrap() -> None:
    assert _run("reduce_sum", [([200, 100], U8)], [], axes=[0]).tolist() == 44
    assert _run("reduce_prod", [([[2, 3], [4, 5]], I32)], [2], axes=[1]).tolist() == [6, 20]
    assert _run("cumulative_sum", [([200, 100], U8)], [2], axes=[0]).tolist() == [200, 44]


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
@pytest.mark.parametrize(("shape", "axes"), [((40, 8, 2, 3), [3, 2]), ((3, 50, 40), [0]), ((300, 17), [1])])
def test_many_small_reductions(name: str, shape: tuple[int, ...], axes: list[int]) -> None:
    """Windows as pooling has them, by slices or by numpy: integers stay exact, NaN wins."""
    values = np.random.default_rng(7).integers(-1, 2, shape)
    kept = [size for axis, size in enumerate(shape) if axis not in axes]
    functions: dict[str, Any] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
    expected = functions[name.removeprefix("reduce_")](values, axis=tuple(axes))
    for type_ in (I64, I32, F32, F16):
        got = _run(name, [(values, type_)], kept, axes=axes)
        np.testing.assert_array_equal(got, expected.astype(np.float64).astype(DTYPES[type_]))
    holed = values.astype(np.float32)
    holed[(0,) * len(shape)] = np.nan
    assert np.isnan(_run(name, [(holed, F32)], kept, axes=axes)[(0,) * len(kept)])


def test_sums_of_float16_dont_stop_growing() -> None:
    assert _run("reduce_sum", [(np.ones(4096), F16)], [], axes=[0]) == 4096


def test_reductions_of_nothing() -> None:
    nothing: list[tuple[npt.ArrayLike, DataType]] = [(np.zeros((0, 2)), F32)]
    assert _run("reduce_sum", nothing, [2], axes=[0]).tolist() == [0, 0]
    assert _run("reduce_prod", nothing, [2], axes=[0]).tolist() == [1, 1]
    assert _run("reduce_max", nothing, [2], axes=[0]).tolist() == [-math.inf] * 2
    assert _run("reduce_min", [(np.zeros((0, 1)), U8)], [1], axes=[0]).tolist() == [255]
    with pytest.raises(Invalid, match="doesn't give"):
        _run("arg_max", nothing, [2], axes=[0], out=I64)


def test_the_first_of_equal_ones_is_found() -> None:
    assert _run("arg_max", [([[1, 3, 3], [2, 2, 0]], I32)], [2], axes=[1], out=I64).tolist() == [1, 0]


@pytest.mark.parametrize("index_type", [I32, I64])
def test_gather_counts_from_both_ends(index_type: DataType) -> None:
    data: tuple[npt.ArrayLike, DataType] = ([[0, 1, 2], [3, 4, 5]], F32)
    assert _run("gather", [data, ([2, -3], index_type)], [2, 2], axes=[1]).tolist() == [[2, 0], [5, 3]]
    assert _run("gather", [data, (1, index_type)], [3], axes=[0]).tolist() == [3, 4, 5]
    for wrong in (3, -4, 2**31 - 1, -(2**31)):
        with pytest.raises(Invalid, match=f"index {wrong} is out of range: there are 3") as caught:
            _run("gather", [data, ([0, wrong], index_type)], [2, 2], axes=[1])
        assert caught.value.reason == "BAD_INPUT"


def test_gather_from_nothing() -> None:
    empty: tuple[npt.ArrayLike, DataType] = (np.zeros((0, 2)), F32)
    assert _run("gather", [empty, (np.zeros(0), I64)], [0, 2], axes=[0]).shape == (0, 2)
    with pytest.raises(Invalid, match="there are 0 to gather from"):
        _run("gather", [empty, ([0], I64)], [1, 2], axes=[0])


@given(
    st.integers(0, 3), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans()
)
def test_matmul(batch: int, m: int, k: int, n: int, shared: bool, turned: bool) -> None:
    """With one matrix on the right for all, and with views that lie across memory."""
    rng = np.random.default_rng(batch + 10 * m + 100 * k + 1000 * n)
    left = rng.integers(-4, 5, (batch, k, m) if turned else (batch, m, k)).astype(np.float32)
    right = rng.integers(-4, 5, (k, n) if shared else (batch, k, n)).astype(np.float32)
    plan = PlanBuilder()
    a, b = plan.input("a", left.shape), plan.input("b", right.shape)
    view = plan.view(a, [batch, m, k], [k * m, 1, m]) if turned else plan.whole(a)
    other = plan.broadcast(b, [batch, k, n])
    plan.output("y", plan.compute("matmul", [view, other], [batch, m, n]))
    got = Program(plan.build()).run({"a": left, "b": right})["y"]
    np.testing.assert_array_equal(got, np.matmul(left.transpose(0, 2, 1) if turned else left, right))


def test_bits_of_integers() -> None:
    pair = [([0b1100, -1], I32), ([0b1010, 7], I32)]
    assert _run("and", pair, [2]).tolist() == [0b1000, 7]
    assert _run("or", pair, [2]).tolist() == [0b1110, -1]
    assert _run("xor", pair, [2]).tolist() == [0b0110, -8]
    assert _run("not", [([0, -1], I32)], [2]).tolist() == [-1, 0]


def test_the_same_bits_as_another_type() -> None:
    assert _run("bit_cast", [([1.0, -0.0], F32)], [2], out=I32).tolist() == [0x3F800000, -(1 << 31)]


def test_order_is_stable_and_ends_with_nan() -> None:
    values = [[2.0, 1.0, math.nan, 1.0, -math.inf]]
    assert _run("arg_sort", [(values, F32)], [1, 5], axes=[1], out=I64).tolist() == [[4, 1, 3, 0, 2]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scatter", [[7, 8], [2, 3], [5, 6]]),
        ("scatter_add", [[12, 15], [2, 3], [9, 11]]),
        ("scatter_mul", [[0, 48], [2, 3], [20, 30]]),
        ("scatter_max", [[7, 8], [2, 3], [5, 6]]),
        ("scatter_min", [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_updates_are_put_at_or_combined_with_what_is_at_indices(name: str, expected: list[list[int]]) -> None:
    data, indices = ([[0, 1], [2, 3], [4, 5]], I32), ([0, -1, 0], I64)
    updates = ([[5, 6], [5, 6], [7, 8]], I32)
    assert _run(name, [data, indices, updates], [3, 2]).tolist() == expected


def test_an_index_to_write_to_is_checked() -> None:
    with pytest.raises(Invalid, match="index 3 is out of range: there are 3 to write to"):
        _run("scatter", [([0, 1, 2], I32), ([3], I64), ([5], I32)], [3])


IN_PLACE = [
    (atomic, type_, position)
    for atomic in ATOMICS.values()
    for type_ in DataType
    if type_ is not DataType.STRING and family(type_) in atomic.in_place
    for position in atomic.replaceable
]


@pytest.mark.parametrize(
    ("atomic", "type_", "position"),
    IN_PLACE,
    ids=[f"{atomic.name}-{type_.name}-{position}" for atomic, type_, position in IN_PLACE],
)
def test_written_over_an_input_it_gives_the_same(atomic: Atomic, type_: DataType, position: int) -> None:
    random = np.random.default_rng(7)
    shape = (2, 3 * 16_384 + 5) if atomic.kind == "elementwise" else (7, 3)

    def drawn(size: tuple[int, ...]) -> npt.NDArray[Any]:
        bits = random.integers(1, 100, size)
        if type_ is DataType.BOOL:
            return bits % 2 == 0
        return np.asarray(bits if family(type_) != "f" else bits / 8 - 6).astype(DTYPES[type_])

    inputs = [drawn(shape) for _ in range(atomic.arity)]
    if atomic.kind == "scatter":
        inputs[1:] = np.array([5, -1, 0, 5]), drawn((4, 3))
    views = tuple(Strided(index, 0, array.shape, ()) for index, array in enumerate(inputs))
    layout = ComputeLayout(atomic, views, len(inputs), ())
    apart = np.empty(shape, DTYPES[type_])
    with np.errstate(all="ignore"):
        build_compute(layout, tuple(inputs), apart)()
        over = inputs[position]
        # The same tensor twice, too.
        if atomic.kind == "elementwise" and atomic.arity == 2:
            both = (over, over)
            twice, taken = np.empty_like(over), over.copy()
            build_compute(layout, both, twice)()
            build_compute(layout, (taken, taken), taken)()
            np.testing.assert_array_equal(taken, twice)
        build_compute(layout, tuple(inputs), over)()
    np.testing.assert_array_equal(over, apart)
