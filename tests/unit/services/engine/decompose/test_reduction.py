"""Reductions along axes that data decide, of nothing, and of integers; running sums and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.pipeline import Stages, compile_model
from services.engine.testing import applied, model_of

F32 = np.float32
X = np.abs(np.random.default_rng(5).standard_normal((2, 3, 4))).astype(F32)
REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceL1": lambda x, **how: np.sum(np.abs(x), **how),
    "ReduceL2": lambda x, **how: np.sqrt(np.sum(x * x, **how)),
    "ReduceLogSum": lambda x, **how: np.log(np.sum(x, **how)),
    "ReduceLogSumExp": lambda x, **how: np.log(np.sum(np.exp(x), **how)),
    "ReduceSumSquare": lambda x, **how: np.sum(x * x, **how),
}
IDENTITIES = {
    "ReduceProd": 1,
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceMean": np.nan,
} | dict.fromkeys(["ReduceLogSum", "ReduceLogSumExp"], -np.inf)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
def test_axes_that_data_decide(operator: str, keep: int) -> None:
    for symbolic in ((), (0,)):
        for axes in ((0,), (-1, 0), (1, 2), (0, 1, 2)):
            (found,) = applied(
                operator, [X, i64(*axes)], [T.FLOAT], opset=20, symbolic=symbolic, keepdims=keep
            )
            wanted = REDUCTIONS[operator](X, axis=axes, keepdims=bool(keep))
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
            assert found.shape == wanted.shape


@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("symbolic", [(), (1,)], ids=["none", "of open length"])
def test_no_axes_are_all_or_none(noop: int, symbolic: tuple[int, ...]) -> None:
    arrays = [X, i64() if not symbolic else i64(1)]
    (found,) = applied("ReduceSum", arrays, [T.FLOAT], opset=20, symbolic=symbolic, noop_with_empty_axes=noop)
    wanted = X.sum(1, keepdims=True) if symbolic else X if noop else X.sum(keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("axes", [(1, 1), (0, -3), (3,), (-4,)])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_axes_named_twice_or_not_there_are_refused(axes: tuple[int, ...], constants: tuple[int, ...]) -> None:
    with pytest.raises(Invalid, match=r"\(ReduceSum\)"):
        applied("ReduceSum", [X, i64(*axes)], [T.FLOAT], opset=20, constants=constants)


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
def test_of_nothing_comes_the_identity(operator: str, keep: int) -> None:
    """Whether there is nothing is known when the plan is made, or decided by data."""
    wanted = np.full((1, 3) if keep else (3,), IDENTITIES.get(operator, 0), F32)
    for constants in ((), (1,)):
        (found,) = applied(
            operator,
            [np.zeros((0, 3), F32), i64(0)],
            [T.FLOAT],
            opset=20,
            constants=constants,
            keepdims=keep,
        )
        np.testing.assert_array_equal(found, wanted)
    for mask in ([False] * 4, [True, False, True, True]):
        x = np.arange(1, 13, dtype=F32).reshape(4, 3)
        kept = REDUCTIONS[operator](x[mask], axis=0, keepdims=bool(keep)) if any(mask) else wanted
        np.testing.assert_allclose(compressed(operator, x, mask, keepdims=keep), kept, rtol=1e-5)


def compressed(operator: str, x: Any, mask: list[bool], **attributes: Any) -> Any:
    """Return what an operator makes of rows that are picked, along axis 0."""
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["rows"], axis=0),
        helper.make_node(operator, ["rows", "axes"], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "rows",
        [
            helper.make_tensor_value_info("x", T.FLOAT, x.shape),
            helper.make_tensor_value_info("mask", T.BOOL, [len(mask)]),
        ],
        [helper.make_tensor_value_info("y", T.FLOAT, None)],
        [helper.make_tensor("axes", T.INT64, [1], [0])],
    )
    content = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    ).SerializeToString()
    compiled = compile_model(content, {}, "a test", Stages(lambda stage: None))
    return Program(decode(encode(compiled.plan))).run({"x": x, "mask": np.array(mask)})["y"]


@pytest.mark.parametrize("type_", [np.int32, np.uint64])
def test_integers_stay_integers(type_: Any) -> None:
    x = np.arange(1, 7, dtype=type_).reshape(2, 3)
    for operator in REDUCTIONS:
        (found,) = applied(operator, [x, i64(1)], [helper.np_dtype_to_tensor_dtype(x.dtype)], opset=20)
        wanted = REDUCTIONS[operator](x.astype(np.float64), axis=1, keepdims=True)
        np.testing.assert_array_equal(found, np.trunc(wanted + 1e-9).astype(type_), err_msg=operator)
        assert found.dtype == type_


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_any_and_all(operator: str) -> None:
    x = np.array([[True, False], [False, False], [True, True]])
    (found,) = applied(operator, [x, i64(1)], [T.BOOL], opset=20, keepdims=0)
    np.testing.assert_array_equal(found, x.any(1) if operator == "ReduceMax" else x.all(1))


@pytest.mark.parametrize("symbolic", [(), (0,)])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("operator", ["CumSum", "CumProd"])
def test_running_sums_and_products(
    operator: str, exclusive: int, reverse: int, symbolic: tuple[int, ...]
) -> None:
    how = {"exclusive": exclusive, "reverse": reverse}
    for axis in (1, -1):
        arrays = [X, np.array(axis, np.int64)]
        model = model_of(operator, arrays, [T.FLOAT], opset=26, **how)
        (wanted,) = ReferenceEvaluator(model).run(None, {"i0": arrays[0], "i1": arrays[1]})
        for constants in ((), (1,)):
            (found,) = applied(operator, arrays, [T.FLOAT], symbolic=symbolic, constants=constants, **how)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 100])
def test_a_running_product_of_any_length(n: int) -> None:
    x = np.resize(np.array([2, 1, -1, 1, 1], np.int64), n)
    (found,) = applied("CumProd", [x, np.array(0, np.int64)], [T.INT64], symbolic=(0,), constants=(1,))
    np.testing.assert_array_equal(found, np.cumprod(x))


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("type_", [np.float32, np.int8, np.uint8, np.int64])
def test_places_of_extremes(operator: str, last: int, type_: Any) -> None:
    """Of equal ones the first counts, or the last; the smallest integer has no negative."""
    ends = [0, 255] if type_ is np.uint8 else [-128, 127]
    x = np.array([[1, *ends, *ends], [*ends, 1, ends[0], 2]]).astype(type_)
    (found,) = applied(operator, [x], [T.INT64], axis=1, select_last_index=last, keepdims=0, symbolic=(0,))
    best = x.max(1) if operator == "ArgMax" else x.min(1)
    places = [np.flatnonzero(row == each)[-last] for row, each in zip(x, best, strict=True)]
    assert found.tolist() == places
    with pytest.raises(Invalid, match=r"axis 1 of .* is empty"):
        applied(operator, [x[:, :0]], [T.INT64], axis=1)
