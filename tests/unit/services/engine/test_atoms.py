"""Every atomic operator in the runtime and in the plain form, on random arrays of every type it takes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import family, same_bits
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder
from services.engine.domain.reference import compute

TYPES = [type_ for type_ in DataType if type_ is not DataType.STRING]
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0])


def drawn(rng: np.random.Generator, type_: DataType, shape: tuple[int, ...]) -> Any:
    """Return numbers small enough for every type, with special ones among them where there are some."""
    with np.errstate(all="ignore"):
        if family(type_) == "b":
            return rng.random(shape) < 0.5
        if family(type_) == "c":
            return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(DTYPES[type_])
        whole = rng.integers(0 if type_.name.startswith("U") else -2, 2, shape)
        if family(type_) == "i" or type_.name.startswith(("INT", "UINT")):
            return whole.astype(DTYPES[type_])
        values = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), rng.normal(size=shape) * 2)
        return values.astype(DTYPES[type_])


def arrays_of(name: str, type_: DataType, rng: np.random.Generator) -> tuple[list[Any], tuple[int, ...]]:
    """Return inputs of an operator, and its axes."""
    atomic, shape = ATOMICS[name], (3, 4, 2)
    match atomic.kind:
        case "matmul":
            return [drawn(rng, type_, (2, 3, 4)), drawn(rng, type_, (2, 4, 3))], ()
        case "gather":
            return [drawn(rng, type_, shape), rng.integers(-4, 4, (2, 3))], (1,)
        case "scatter":
            indices = rng.integers(-3, 3, 5)
            return [drawn(rng, type_, shape), indices, drawn(rng, type_, (5, 4, 2))], ()
        case "elementwise":
            arrays = [drawn(rng, type_, shape) for _ in range(atomic.arity)]
            if name == "where":
                arrays[0] = drawn(rng, DataType.BOOL, shape)
            if family(type_) == "i" and name in ("div", "mod"):
                arrays[1][arrays[1] == 0] = 1
            if family(type_) == "i" and name == "pow":
                arrays[0][arrays[0] == 0] = 1
            return arrays, ()
    axes = (0, 2) if atomic.kind == "reduce" and atomic.result != "index" else (1,)
    return [drawn(rng, type_, shape)], axes


def run(name: str, arrays: list[Any], axes: tuple[int, ...], shape: tuple[int, ...], out: DataType) -> Any:
    plan = PlanBuilder()
    types = {DTYPES[type_]: type_ for type_ in TYPES}
    tensors = [plan.input(f"i{i}", array.shape, types[array.dtype]) for i, array in enumerate(arrays)]
    plan.output("y", plan.compute(name, tensors, list(shape), axes=axes, type_=out))
    return Program(plan.build()).run({f"i{i}": array for i, array in enumerate(arrays)})["y"]


def alike(found: Any, expected: Any) -> bool:
    """Tell whether arrays are equal: to the bit, but for how NaN is written and what sums round."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    with np.errstate(all="ignore"):
        if found.dtype.isbuiltin != 1:
            return np.array_equal(found.astype(np.float32), expected.astype(np.float32), equal_nan=True)
        if found.dtype.kind != "f":
            return bool(found.tobytes() == expected.tobytes())
        tolerance = 8 * float(np.finfo(found.dtype).eps)
        wide = [each.astype(np.float64) for each in (found, expected)]
        return bool(np.allclose(*wide, rtol=tolerance, atol=1e-6, equal_nan=True))


PAIRS = [
    (name, type_)
    for name, atomic in ATOMICS.items()
    for type_ in TYPES
    if family(type_) in atomic.types and name != "cast"  # of which libs/runtime/test_casting.py has all
]


@pytest.mark.parametrize(("name", "type_"), PAIRS)
def test_the_runtime_does_what_the_plain_form_does(name: str, type_: DataType) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{name} {type_.name}".encode()))
    results = [
        {"same": type_, "bool": DataType.BOOL, "index": DataType.INT64}.get(ATOMICS[name].result, type_)
    ]
    if name == "bit_cast":
        results = [other for other in TYPES if other is not DataType.BOOL and same_bits(type_, other)]
    for out in results:
        arrays, axes = arrays_of(name, type_, rng)
        expected = compute(name, arrays, axes, out)
        assert alike(run(name, arrays, axes, expected.shape, out), expected), out.name


@pytest.mark.parametrize("name", [n for n, atomic in ATOMICS.items() if atomic.kind == "scatter"])
def test_nothing_is_written_and_nothing_written_to(name: str) -> None:
    kept, none = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((0, 2), np.float32)
    nowhere = np.zeros(0, np.int64)
    for data in (kept, none):
        got = run(name, [data, nowhere, none], (), data.shape, DataType.FLOAT32)
        np.testing.assert_array_equal(got, data)
    with pytest.raises(Invalid, match="there are 0 to write to"):
        run(name, [none, np.zeros(1, np.int64), kept[:1]], (), none.shape, DataType.FLOAT32)


@pytest.mark.parametrize("name", ["scatter_max", "scatter_min"])
def test_nan_wins_where_extremes_are_kept(name: str) -> None:
    data = np.array([np.nan, 1, 1], np.float32)
    got = run(name, [data, np.array([0, 1]), np.array([5, np.nan], np.float32)], (), (3,), DataType.FLOAT32)
    assert np.isnan(got).tolist() == [True, True, False]


def test_negative_powers_of_integers_are_0_but_of_units() -> None:
    base, power = np.array([2, -1, -1, 1, -7]), np.array([-1, -3, -2, -9, 3])
    expected = [0, -1, 1, 1, -343]
    assert compute("pow", [base, power], (), DataType.INT64).tolist() == expected
    assert run("pow", [base, power], (), (5,), DataType.INT64).tolist() == expected
    with pytest.raises(Invalid, match="integer 0 is raised to a negative power"):
        compute("pow", [np.array([0]), np.array([-1])], (), DataType.INT64)


def test_extremes_of_nothing_are_the_other_end_of_the_type() -> None:
    for type_, low in ((DataType.FLOAT32, -np.inf), (DataType.INT16, -32768), (DataType.UINT8, 0)):
        nothing = np.zeros((0, 2), DTYPES[type_])
        for found in (
            compute("reduce_max", [nothing], (0,), type_),
            run("reduce_max", [nothing], (0,), (2,), type_),
        ):
            assert found.tolist() == [low, low]
