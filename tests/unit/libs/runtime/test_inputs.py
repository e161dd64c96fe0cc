"""What a call may bring: types, lists, shapes; and how what doesn't fit is named."""

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType, Operation
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder

F32, I8, I64, U64, BOOL = (
    DataType.FLOAT32, DataType.INT8, DataType.INT64, DataType.UINT64, DataType.BOOL,
)  # fmt: skip


def _echo(type_: DataType, rank: int = 1) -> Program:
    plan = PlanBuilder()
    plan.output("y", plan.input("x", [plan.dimension(f"d{i}", 0, 64) for i in range(rank)], type_))
    return Program(plan.build())


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (F32, [1, 2]),
        (F32, [1.5, 2]),
        (F32, (0.1, float("inf"))),
        (F32, []),
        (I8, [127, -128]),
        (I8, np.array([1, 2], np.int8)),
        (I64, [2**63 - 1]),
        (U64, [2**64 - 1]),
        (BOOL, [True, False]),
        (BOOL, []),
    ],
)
def test_what_is_taken(type_: DataType, value: Any) -> None:
    got = _echo(type_).run({"x": value})["y"]
    assert got.dtype == DTYPES[type_]
    assert got.tolist() == np.asarray(value, DTYPES[type_]).tolist()


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (I8, [128], "input 'x' must hold int8, which can't hold 128"),
        (I8, [-129], "can't hold -129"),
        (I64, [2**63], "can't hold 9223372036854775808"),
        (I64, [2**64], "but its list holds something else"),
        (U64, [-1], "can't hold -1"),
        (I64, [1.0], "must hold int64, but its list holds numbers"),
        (I64, [True], "but its list holds booleans"),
        (F32, [True], "but its list holds booleans"),
        (BOOL, [1], "must hold bool, but its list holds integers"),
        (F32, [1e39], r"must hold float32, which can't hold 1e\+39"),
        (F32, ["1"], "but its list holds something else"),
        (F32, [None], "but its list holds something else"),
        (F32, [[1], [1, 2]], "lists of one depth have one length"),
        (F32, "abc", "must hold float32, not a str"),
        (F32, None, "must hold float32, not a NoneType"),
        (F32, {"a": 1}, "not a dict"),
        (F32, np.ones(2), r"must hold float32, not float64: convert it with astype\('float32'\)"),
        (I64, np.ones(2, np.int32), "must hold int64, not int32"),
        (F32, np.array(["a"]), "not <U1"),
        (F32, [[1.0]], r"input 'x' has the shape \[1, 1\]; it must be \[d0\]"),
        (F32, 1.0, r"has the shape \[\]; it must be \[d0\]"),
        (F32, [0.0] * 65, "dimension 'd0' is 65; the plan was made for sizes 0 to 64"),
    ],
)
def test_what_is_refused(type_: DataType, value: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        _echo(type_).run({"x": value})
    assert caught.value.reason == "BAD_INPUT"


def test_deep_lists_are_refused() -> None:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    with pytest.raises(Invalid):
        _echo(F32).run({"x": value})


def test_names_are_checked() -> None:
    program = _echo(F32)
    with pytest.raises(Invalid, match=r"input 'x' \(x: float32\[d0\]\) is missing; given was 'X'"):
        program.run({"X": [1]})
    with pytest.raises(Invalid, match="input 'xs' isn't one of x; did you mean 'x'"):
        program.run({"x": [1], "xs": [1]})
    with pytest.raises(Invalid, match="inputs must be a mapping from name to array, not list"):
        program.run([1.0])  # type: ignore[arg-type]


def test_a_number_is_a_scalar() -> None:
    assert _echo(F32, 0).run({"x": 2.5})["y"].tolist() == 2.5


def test_fixed_axes_and_formulas_of_dimensions() -> None:
    plan = PlanBuilder()
    batch = plan.dimension("batch")
    doubled = plan.extent(Operation.MULTIPLY, plan.size(2), batch)
    plan.input("a", [batch, 3])
    plan.output("y", plan.input("b", [doubled]))
    program = Program(plan.build())
    assert [str(spec) for spec in program.inputs] == ["a: float32[batch, 3]", "b: float32[2*batch]"]
    assert program.run({"a": [[1, 2, 3]], "b": [1, 2]})["y"].tolist() == [1, 2]
    with pytest.raises(Invalid, match=r"input 'a' has the shape \[1, 2\]; it must be \[batch, 3\]"):
        program.run({"a": [[1, 2]], "b": [1, 2]})
    with pytest.raises(Invalid, match=r"input 'b' has the shape \[3\]; it must be \[2\*batch\]"):
        program.run({"a": [[1, 2, 3]], "b": [1, 2, 3]})


def test_inputs_that_disagree_about_a_dimension_are_refused() -> None:
    plan = PlanBuilder()
    batch = plan.dimension("batch")
    plan.input("a", [batch])
    plan.output("y", plan.input("b", [batch]))
    with pytest.raises(Invalid, match="dimension 'batch' is 1 in input 'a' and 2 in input 'b'"):
        Program(plan.build()).run({"a": [1], "b": [1, 2]})
