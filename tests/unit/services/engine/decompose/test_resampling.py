"""Resizing: places, weights and sizes that are known, open, or decided by data; against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx.helper import np_dtype_to_tensor_dtype
from onnx.reference import ReferenceEvaluator

from libs.common.errors import Invalid
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.graph import Node
from services.engine.domain.program import Program, RasterInstruction
from services.engine.testing import applied, graph_of, model_of

F32 = np.float32
X = np.random.default_rng(11).standard_normal((2, 3, 6, 5)).astype(F32)
CUBIC = {"mode": "cubic"}
LINEAR = {"mode": "linear"}
SMOOTH = [
    LINEAR,
    CUBIC,
    {**CUBIC, "cubic_coeff_a": -0.5},
    {**CUBIC, "exclude_outside": 1},
    {**LINEAR, "antialias": 1},
    {**CUBIC, "antialias": 1},
]
SMOOTH_IDS = ["linear", "cubic", "cubic -0.5", "cubic inside", "linear smoothed", "cubic smoothed"]
POSITIONS = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]


def floats(*values: float) -> Any:
    return np.array(values, F32)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def runtime(operator: str, arrays: list[Any], type_: int = T.FLOAT, **options: Any) -> Any:
    model = model_of(operator, arrays, [type_], **options)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {f"i{index}": array for index, array in enumerate(arrays) if array is not None}
    return session.run(None, feed)[0]


def all_ways(operator: str, arrays: list[Any], type_: int = T.FLOAT, **options: Any) -> list[Any]:
    """Return what comes of constants, of open sizes, and of inputs."""
    rest = tuple(index for index in range(1, len(arrays)) if arrays[index] is not None)
    found = []
    for constants, symbolic in ((rest, ()), (rest, (0,)), ((), (0,))):
        found += applied(operator, arrays, [type_], constants=constants, symbolic=symbolic, **options)
    return found


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("attributes", SMOOTH, ids=SMOOTH_IDS)
def test_smooth_resizing_by_scales_and_to_sizes(attributes: dict[str, Any], position: str) -> None:
    options = {**attributes, "opset": 19, "axes": [2, 3], "coordinate_transformation_mode": position}
    asked = [[X, None, None, i64(4, 9)]]
    # ONNX's definition takes scale · size for the length of an aligned axis, the runtime what is left of it.
    if position != "align_corners":
        asked.append([X, None, floats(1.6, 0.4)])
    for arrays in asked:
        wanted = runtime("Resize", arrays, **options)
        for found in all_ways("Resize", arrays, **options):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("position", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("type_", [np.float32, np.uint8, np.bool_, np.int64])
def test_the_nearest(type_: Any, position: str, rounding: str) -> None:
    x = (X * 50).astype(np.int64).astype(type_)
    options = {"nearest_mode": rounding, "coordinate_transformation_mode": position, "opset": 18}
    for scale in (floats(1, 1, 2, 3), floats(1, 1, 0.5, 1.5)):
        floored = [int(np.floor(F32(size) * each)) for size, each in zip(x.shape, scale, strict=True)]
        places = []
        for target, size, each in zip(floored, x.shape, scale.astype(np.float64), strict=True):
            at = np.arange(target) / each
            at = at if position == "asymmetric" else (np.arange(target) + 0.5) / each - 0.5
            rounded = {
                "round_prefer_floor": np.ceil(at - 0.5),
                "round_prefer_ceil": np.floor(at + 0.5),
                "floor": np.floor(at),
                "ceil": np.ceil(at),
            }[rounding]
            places.append(np.clip(rounded, 0, size - 1).astype(int))
        for found in all_ways("Resize", [x, None, scale], np_dtype_to_tensor_dtype(x.dtype), **options):
            np.testing.assert_array_equal(found, x[np.ix_(*places)])


@pytest.mark.parametrize(
    "attributes", [LINEAR, CUBIC, {"mode": "nearest"}], ids=["linear", "cubic", "nearest"]
)
def test_a_region_is_cropped_and_what_is_beyond_extrapolated(attributes: dict[str, Any]) -> None:
    arrays = [X, floats(0.11, 0.2, 1.3, 0.93), None, i64(4, 9)]
    options = {
        **attributes,
        "opset": 19,
        "axes": [2, 3],
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    wanted = runtime("Resize", arrays, **options)
    assert (wanted == 9).any()
    for found in all_ways("Resize", arrays, **options):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_the_aspect_ratio_is_kept(policy: str) -> None:
    arrays = [X, None, None, i64(9, 9)]
    options = {**LINEAR, "opset": 18, "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    model = model_of("Resize", arrays, [T.FLOAT], **options)
    (wanted,) = ReferenceEvaluator(model).run(None, {"i0": X, "i3": arrays[3]})
    assert wanted.shape[2:] == ((9, 8) if policy == "not_larger" else (11, 9))
    for found in all_ways("Resize", arrays, **options):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_older_resizing() -> None:
    scales = floats(1, 1, 2, 1.5)
    for operator, opset in (("Resize", 10), ("Upsample", 9)):
        for mode in ("nearest", "linear"):
            arrays = [X, scales]
            wanted = runtime(operator, arrays, opset=opset, mode=mode)
            for found in all_ways(operator, arrays, opset=opset, mode=mode):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    (found,) = applied("Upsample", [X], [T.FLOAT], opset=8, scales=scales.tolist(), mode="linear")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("type_", [np.uint8, np.int8, np.int32])
def test_integers_lose_their_fraction_once(type_: Any) -> None:
    x = np.random.default_rng(2).integers(0, 100, (1, 1, 4, 4)).astype(type_)
    number = np_dtype_to_tensor_dtype(x.dtype)
    arrays = [x, None, floats(1, 1, 2, 2)]
    wanted = runtime("Resize", arrays, number, opset=19, **LINEAR)
    for found in all_ways("Resize", arrays, number, opset=19, **LINEAR):
        np.testing.assert_array_equal(found, wanted)
    # What overshoots stays within the type.
    ends = np.tile(np.array([np.iinfo(type_).min, np.iinfo(type_).max], type_).repeat(2), (4, 1))[None, None]
    (bent,) = applied("Resize", [ends, None, floats(1, 1, 2, 2)], [number], opset=19, **CUBIC)
    assert (bent[..., 0] == np.iinfo(type_).min).all()
    assert (bent[..., -1] == np.iinfo(type_).max).all()
    with pytest.raises(Invalid, match=r"int64.1, 1, 4, 4. has elements that are only taken as they are"):
        applied("Resize", [x.astype(np.int64), None, floats(1, 1, 2, 2)], [T.INT64], opset=19, **LINEAR)


def test_half_precision_is_computed_in_single() -> None:
    x = (X * 8).astype(np.float16)
    (found,) = applied("Resize", [x, None, floats(1, 1, 2, 0.5)], [T.FLOAT16], opset=19, **CUBIC)
    (wide,) = applied("Resize", [x.astype(F32), None, floats(1, 1, 2, 0.5)], [T.FLOAT], opset=19, **CUBIC)
    np.testing.assert_array_equal(found, wide.astype(np.float16))


@pytest.mark.parametrize("attributes", SMOOTH, ids=SMOOTH_IDS)
def test_what_is_infinite_stays_in_its_place(attributes: dict[str, Any]) -> None:
    x = X.copy()
    x[0, 0, 0, 0] = np.inf
    (found,) = applied("Resize", [x, None, floats(1, 1, 2, 2)], [T.FLOAT], opset=19, **attributes)
    (finite,) = applied("Resize", [X, None, floats(1, 1, 2, 2)], [T.FLOAT], opset=19, **attributes)
    assert not np.isfinite(found[0, 0, :2, :2]).any()
    # Nothing reaches further than twice two elements and a half.
    np.testing.assert_array_equal(found[0, 0, 5:, 5:], finite[0, 0, 5:, 5:])
    np.testing.assert_array_equal(found[1:], finite[1:])


def test_what_repeats_is_one_raster_for_each_axis_and_fractions_are_formulas() -> None:
    scales = {"k": floats(1, 1, 2, 3), "half": floats(1, 1, 0.5, 1.5)}
    attributes = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    shape = {"x": (1, 3, "h", "w")}
    repeated = Node("", "Resize", ("x", "", "k"), ("y",), attributes)
    program = decompose(graph_of([repeated], shape, ["y"], scales))
    assert isinstance(program, Program)
    assert [type(each) for each in program.instructions] == [RasterInstruction] * 2
    halved = decompose(
        graph_of([Node("", "Resize", ("x", "", "half"), ("y",), LINEAR)], shape, ["y"], scales)
    )
    assert isinstance(halved, Program)
    assert [str(size) for size in halved.values[halved.outputs[0].value].shape[2:]] == [
        "((h) // (2))",
        "((3*w) // (2))",
    ]


REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([X], {}, "it needs its scales or sizes"),
    ([X, None, floats(2, 2)], {}, r"its scales are float32\[2\]; it needs one for each of 4 axes"),
    ([X, None, floats(1, 1, 0, 1)], {}, "scale 0.0 is not in 0 to 1048576"),
    ([X, None, floats(1, 1, np.nan, 1)], {}, "scale nan is not in 0 to 1048576"),
    ([X, None, None, i64(2, 2)], {}, "it needs a size for each of 4 axes, not 2"),
    ([X, None, floats(1, 1, 2, 2)], {"mode": "lineal"}, "did you mean 'linear'"),
    ([X, None, floats(2)], {"axes": [4]}, "axis 4 is outside of -4 to 3"),
    (
        [X, floats(1, 1), floats(1, 1, 2, 2)],
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        "its region of interest is float32.2.; it needs a start and an end for each of 4 axes",
    ),
]


@pytest.mark.parametrize(("arrays", "attributes", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(arrays: list[Any], attributes: dict[str, Any], text: str) -> None:
    constants = tuple(index for index in range(1, len(arrays)) if arrays[index] is not None)
    with pytest.raises(Invalid, match=rf"the_Resize \(Resize\): .*{text}"):
        applied("Resize", arrays, [T.FLOAT], opset=19, constants=constants, **attributes)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_that_come_with_the_data_are_refused_too(scale: float) -> None:
    with pytest.raises(Invalid, match=r"the_Resize \(Resize\)"):
        applied("Resize", [X, None, floats(1, 1, scale, 1)], [T.FLOAT], opset=19, **LINEAR)
