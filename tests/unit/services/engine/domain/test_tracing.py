"""What library functions do when they are traced into plans is what they do at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.samples import SAMPLES
from libs.compute.tensor import Tensor, asarray
from libs.compute.testing import Sample, arrays_in, assert_same, found, parts, replaced
from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.builder import Builder
from services.engine.domain.composed import Composed
from services.engine.domain.extents import Extent
from services.engine.domain.program import Program, ValueType
from services.engine.domain.tracing import Tracer, inline, trace
from services.engine.testing_tracing import run_traced

TRACED = [sample for sample in SAMPLES if arrays_in([sample.args, sample.options])]
WITH_SIZES = [
    sample
    for sample in TRACED
    if any(array.ndim and array.shape[0] for array in arrays_in([sample.args, sample.options]))
]
NEED_SIZES = {
    *("insert", "delete", "convolve", "correlate", "linalg.qr"),
    *("polyval", "polyadd", "polysub", "polymul", "polyder", "polyint"),
    *("fft.fft", "fft.ifft", "fft.rfft", "fft.fft2", "fft.ifft2"),
}
"""Functions that go through what they are given step by step, so that its size must be known."""
MATRIX = {"x": ValueType(DataType.FLOAT32, (Extent.of(2), Extent.of(3)))}


def called(sample: Sample, tensors: list[Tensor]) -> list[Any]:
    args, options = replaced([list(sample.args), dict(sample.options)], tensors)
    return parts(found(matrix, sample.name)(*args, **options))


def both(sample: Sample, *, open_sizes: bool) -> tuple[Any, Any]:
    arrays = arrays_in([list(sample.args), dict(sample.options)])
    named = {f"x{place}": array for place, array in enumerate(arrays)}
    expected = called(sample, [asarray(array) for array in arrays])
    got = run_traced(lambda **tensors: called(sample, list(tensors.values())), named, open_sizes=open_sizes)
    return list(got.values()), expected


@pytest.mark.parametrize("sample", TRACED, ids=map(str, range(len(TRACED))))
def test_traced_functions_give_what_they_give_at_once(sample: Sample) -> None:
    got, expected = both(sample, open_sizes=False)
    assert_same(got, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("sample", WITH_SIZES, ids=map(str, range(len(WITH_SIZES))))
def test_sizes_may_be_open(sample: Sample) -> None:
    try:
        got, expected = both(sample, open_sizes=True)
    except Invalid as error:
        # Broadcasting takes sizes of one name to be equal; a gradient of second order wants three places.
        named = sample.name in NEED_SIZES and "know" in str(error)
        assert named or sample.name in ("broadcast_arrays", "gradient")
    else:
        assert_same(got, expected, rtol=1e-10, atol=1e-13)


def test_outputs_have_names() -> None:
    def names(function: Any) -> list[str]:
        return [output.name for output in trace(function, MATRIX).outputs]

    assert names(lambda x: x + 1) == ["output"]
    assert names(lambda x: (x + 1, [x][0])) == ["output_0", "output_1"]
    assert names(lambda x: {"scores": x, "best": matrix.argmax(x)}) == ["scores", "best"]


def test_inputs_come_by_name_or_in_order() -> None:
    types = {"a": MATRIX["x"], "b": MATRIX["x"]}
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.full((2, 3), 3, np.float32)}
    assert run_traced(lambda b, a: b - a, arrays)["output"][0, 0] == 2
    assert run_traced(lambda first, second: first - second, arrays)["output"][0, 0] == -2
    with pytest.raises(Invalid, match="doesn't take the inputs a, b"):
        trace(lambda only: only, types)


def test_constants_of_the_function_are_constants_of_the_plan() -> None:
    weights = matrix.array([[1.0], [2.0], [3.0]], "float32")
    program = trace(lambda x: x @ weights, MATRIX)
    assert isinstance(program, Program)
    assert len(program.constants) == 1


def test_what_is_straight_stays_straight_and_data_sizes_make_parts() -> None:
    assert isinstance(trace(lambda x: matrix.pad(x, 1, "reflect"), MATRIX), Program)
    assert isinstance(trace(lambda x: x[x > 0], MATRIX), Composed)


def test_sizes_that_are_open_come_out_as_numbers() -> None:
    x = np.zeros((5, 3), np.float32)
    got = run_traced(
        lambda x: (x.shape[0], matrix.size(x), matrix.zeros((x.shape[0],), like=x)), {"x": x}, open_sizes=True
    )
    assert [each.tolist() for each in got.values()] == [5, 15, [0.0] * 5]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x if x[0, 0] > 0 else -x, "use where"),
        (lambda x: np.asarray(x) + 1, "use where"),
        (lambda x: float(x[0, 0]), "can't look"),
        (lambda x: x[5], "out of range"),
        (lambda x: x + np.ones(4), "broadcast"),
        (lambda x: [], "gives nothing"),
        (lambda x: "text", "can't be made|not supported"),
        (lambda x: x["a"], "is no index"),
    ],
)
def test_what_is_refused(function: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        trace(function, MATRIX)


def test_two_traces_dont_mix() -> None:
    other = Tracer(Builder(Bounds({})))
    stray = Tensor(other, other.scalar(1.0, DataType.FLOAT32))
    with pytest.raises(Invalid, match="two traces"):
        trace(lambda x: x + stray, MATRIX)
    with pytest.raises(Invalid, match="another trace"):
        trace(lambda x: stray, MATRIX)


def test_functions_compose_in_one_builder() -> None:
    builder = Builder(Bounds({}))
    x = builder.input("x", MATRIX["x"])
    before = inline(builder, lambda x: (x - 1) * 2, {"x": x})  # type: ignore[dict-item]
    after = inline(builder, lambda y: matrix.sum(y, 1), {"y": before["output"]})
    program = builder.program([("total", after["output"])])
    assert [output.name for output in program.outputs] == ["total"]


def test_an_image_is_decoded_in_a_plan() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    data = np.frombuffer(file.getvalue(), np.uint8)

    def decoded(data: Tensor) -> Tensor:
        return Tensor(data.backend, data.backend.decode_image(data.value, "RGB"))

    np.testing.assert_array_equal(run_traced(decoded, {"data": data}, open_sizes=False)["output"], pixels)
    np.testing.assert_array_equal(decoded(asarray(data)).numpy(), pixels)
