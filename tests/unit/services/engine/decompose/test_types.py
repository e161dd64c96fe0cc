"""Rules with types that the package's cases leave out, and with extremes of nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx import TensorProto as T
from onnx.helper import np_dtype_to_tensor_dtype

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.pipeline import Stages, compile_model
from services.engine.testing import applied


def one(operator: str, *arrays: Any, **options: Any) -> Any:
    given = [np.asarray(array) for array in arrays]
    (found,) = applied(operator, given, [np_dtype_to_tensor_dtype(given[0].dtype)], **options)
    return found


@pytest.mark.parametrize("type_", [np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float32])
def test_shrink(type_: Any) -> None:
    x = np.array(
        [0, 1, 2, 3, 4, 100] + ([-1, -2, -3, -128] if np.issubdtype(type_, np.signedinteger) else [])
    )
    expected = np.where(x < -2, x + 2, np.where(x > 2, x - 2, 0))
    assert one("Shrink", x.astype(type_), lambd=2.0, bias=2.0).tolist() == expected.tolist()
    halves = one("Shrink", x.astype(type_), lambd=1.5, bias=1.5)
    wide = np.where(x < -1.5, x + 1.5, np.where(x > 1.5, x - 1.5, 0))
    assert halves.tolist() == wide.astype(type_).tolist()
    assert not one("Shrink", x.astype(type_), lambd=float("inf")).any()


def test_shrink_keeps_large_integers_exact() -> None:
    assert one("Shrink", np.array([2**60 + 1, -(2**60) - 1]), lambd=0.5, bias=1.0).tolist() == [
        2**60,
        -(2**60),
    ]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("none", [True, False, False]),
        ("add", [True, True, False]),
        ("max", [True, True, False]),
        ("mul", [False, False, False]),
        ("min", [False, False, False]),
    ],
)
def test_booleans_are_combined_where_they_are_written(reduction: str, expected: list[bool]) -> None:
    data, updates = np.array([False, True, False]), np.array([True, False])
    places = np.array([0, 1])
    assert one("ScatterElements", data, places, updates, reduction=reduction).tolist() == expected
    assert one("ScatterND", data, places[:, None], updates, reduction=reduction).tolist() == expected


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 6, 9])
def test_centres(size: int, index: Any) -> None:
    """Of what is odd, the first end loses less and gets less; the size comes with the call."""
    x = np.arange(1, 11, dtype=np.float32).reshape(2, 5)
    first, missing = max(5 - size, 0) // 2, max(size - 5, 0)
    expected = np.pad(x[:, first : first + size], ((0, 0), (missing // 2, missing - missing // 2)))
    got = one("CenterCropPad", x, np.array([size], index), axes=[-1])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(
        one("CenterCropPad", x, np.array([size], index), axes=[-1], symbolic=[0]), expected
    )


@pytest.mark.parametrize("skips", [-1, 256, (1 << 63) - 1])
def test_items_that_may_be_skipped_are_bounded(skips: int) -> None:
    how: dict[str, Any] = {"mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "ngram_counts": [0, 0]}
    how |= {"ngram_indexes": [0], "pool_int64s": [1, 2], "max_skip_count": skips}
    x = np.array([1, 5, 2, 0] + [0] * 300)
    with pytest.raises(Invalid, match="attribute 'max_skip_count' is"):
        applied("TfIdfVectorizer", [x], [T.FLOAT], **how)
    if skips > 0:
        assert applied("TfIdfVectorizer", [x[:4]], [T.FLOAT], **how)[0].tolist() == [1.0]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_factors_that_are_not_finite_are_refused(value: str) -> None:
    with pytest.raises(Invalid, match=f"attribute 'alpha' is {value}; it must be finite"):
        one("Elu", np.ones(3, np.float32), alpha=float(value))


@pytest.mark.parametrize("value", [-1, 2, 1 << 31, -(1 << 63)])
def test_flags_are_0_or_1(value: int) -> None:
    with pytest.raises(Invalid, match=rf"attribute 'keepdims' is {value}; use 0 or 1"):
        one("ReduceMax", np.ones((2, 3), np.float32), keepdims=value)


@pytest.mark.parametrize(
    ("operator", "arrays"),
    [
        ("HannWindow", [np.array([3, 4])]),
        ("OneHot", [np.array([0]), np.array([3, 4]), np.array([0, 1])]),
        ("TopK", [np.ones(3, np.float32), np.array([1, 2])]),
        ("DFT", [np.ones((1, 4, 1), np.float32), np.array([3, 4])]),
        ("DFT", [np.ones((1, 4, 1), np.float32), None, np.array([0, 1])]),
        ("CumSum", [np.ones((1, 4), np.float32), np.array([0, 1])]),
        ("STFT", [np.ones((1, 8, 1), np.float32), np.array([1, 2]), None, np.array(4)]),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_a_vector_where_one_number_is_needed_is_refused(
    operator: str, arrays: list[Any], known: bool
) -> None:
    constants = [index for index, array in enumerate(arrays) if index and array is not None] if known else []
    with pytest.raises(Invalid, match=rf"\({operator}\)"):
        applied(operator, arrays, [T.FLOAT] * (1 + (operator == "TopK")), constants=constants)


@pytest.mark.parametrize("type_", [ml_dtypes.int2, ml_dtypes.uint4])
def test_extremes_of_numbers_that_are_only_stored_are_refused(type_: Any) -> None:
    with pytest.raises(Invalid, match=r"elements of type .* are not supported"):
        one("ReduceMin", np.zeros((2, 0), type_), np.array([1]), constants=[1])


def test_sizes_of_other_axes_than_there_are_are_refused() -> None:
    with pytest.raises(Invalid, match="has 3 sizes for 2 axes"):
        one("CenterCropPad", np.ones((2, 3), np.float32), np.array([1, 2, 3]))


@pytest.mark.parametrize("type_", [np.float16, np.float32, np.float64])
def test_softplus_of_small_exponentials(type_: Any) -> None:
    low = -16.0 if type_ is np.float16 else -80.0
    x = np.array([low, low / 2, -5.0, -0.1, 0.0, 5.0, 60.0, np.inf, -np.inf, np.nan], type_)
    with np.errstate(all="ignore"):
        expected = np.logaddexp(x.astype(np.longdouble), 0).astype(type_)
    tiny = 2 * float(np.finfo(type_).smallest_subnormal)
    np.testing.assert_allclose(one("Softplus", x), expected, rtol=4 * np.finfo(type_).eps, atol=tiny)


@pytest.mark.parametrize("x_type", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("scale_type", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_root_mean_squares_have_the_scales_type(x_type: Any, scale_type: Any) -> None:
    x, scale = np.array([[3.0, 4.0]]).astype(x_type), np.array([1.0, 2.0]).astype(scale_type)
    (found,) = applied("RMSNormalization", [x, scale], [np_dtype_to_tensor_dtype(scale.dtype)])
    assert found.dtype == scale.dtype
    np.testing.assert_allclose(
        found.astype(np.float64),
        [[3 / 12.5**0.5, 8 / 12.5**0.5]],
        rtol=1e-2,
    )


def of_chosen(operator: str, type_: int, **attributes: Any) -> ModelProto:
    """Return the reduction of those elements of x that aren't 0: so many as data decide, none too."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Squeeze", ["at", "zero"], ["flat"]),
        helper.make_node("Gather", ["x", "flat"], ["chosen"]),
        helper.make_node(operator, ["chosen"], ["y"], name="the_reduction", keepdims=0, **attributes),
    ]
    inputs = [helper.make_tensor_value_info("x", T.INT32, ["n"])]
    outputs = [helper.make_tensor_value_info("y", type_, [])]
    zero = helper.make_tensor("zero", T.INT64, [1], [0])
    graph = helper.make_graph(nodes, "chosen", inputs, outputs, [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def run(model: ModelProto, x: Any) -> Any:
    plan = compile_model(model.SerializeToString(), {}, "a test", Stages(lambda stage: None)).plan
    return Program(decode(encode(plan))).run({"x": x})["y"]


def test_extremes_of_what_data_choose() -> None:
    some, none = np.array([0, 5, -7, 0], np.int32), np.zeros(3, np.int32)
    for operator, expected, nothing in (("ReduceMax", 5, -(2**31)), ("ReduceMin", -7, 2**31 - 1)):
        model = of_chosen(operator, T.INT32)
        assert run(model, some) == expected
        assert run(model, none) == nothing
    model = of_chosen("ArgMax", T.INT64, axis=0)
    assert run(model, some) == 0
    with pytest.raises(Invalid, match="ArgMax") as caught:
        run(model, none)
    assert caught.value.reason == "BAD_INPUT"
