import numpy as np
import pytest

from libs.common.errors import Invalid
from services.serving.domain.tensors import Signature, Tensor, TensorSpec, check_inputs, difference


def signature(*shapes: tuple[int | str, ...], output: tuple[int | str, ...] = ("n",)) -> Signature:
    inputs = tuple(TensorSpec(f"x{index}", "FP32", shape) for index, shape in enumerate(shapes))
    return Signature(inputs, (TensorSpec("y", "FP32", output),))


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        (signature(("n", 3)), "n"),
        (signature(("n", 3), ("n",)), "n"),
        (signature(("", 3), output=("", 2)), ""),
        (signature(("", 3)), "n"),
        (signature(("n", 3), ("m",)), None),
        (signature((1, 3)), None),
        (signature(("n", 3), output=()), None),
        (signature(("n", "n")), None),
        (signature(("n", "2*n")), None),
        (signature(("n", "nn")), "n"),
        (signature(), None),
    ],
)
def test_rows_are_the_first_dimension_of_all_and_of_nothing_else(made: Signature, rows: str | None) -> None:
    assert made.rows == rows


def test_dimensions_of_one_name_have_one_size() -> None:
    made = signature(("n", "k"), ("n", "k"))
    one, other = (np.zeros(shape, np.float32) for shape in ((2, 3), (2, 4)))
    with pytest.raises(Invalid, match="has 4 as 'k', and input 'x0' has 3"):
        check_inputs(made, [Tensor("x0", "FP32", one), Tensor("x1", "FP32", other)])
    found = check_inputs(made, [Tensor("x1", "FP32", one), Tensor("x0", "FP32", one)])
    assert list(found) == ["x0", "x1"]


def test_a_missing_input_is_named() -> None:
    with pytest.raises(Invalid, match=r"input 'x0': is missing; the model takes x0: FP32\[n, 3\]"):
        check_inputs(signature(("n", 3)), [])


X = TensorSpec("x", "FP32", ("n", 3))
Y = TensorSpec("y", "FP32", ("n",))


@pytest.mark.parametrize(
    ("inputs", "outputs", "told"),
    [
        ((X,), (Y,), ""),
        ((TensorSpec("x", "FP32", ("batch", 3)),), (TensorSpec("y", "FP32", ("batch",)),), ""),
        ((TensorSpec("x", "FP32", ("n", "m")),), (Y, TensorSpec("z", "FP32", ("n",))), ""),
        ((X,), (TensorSpec("y", "FP32", ()),), ""),
        ((TensorSpec("x", "FP64", ("n", 3)),), (Y,), "input 'x' was FP32[n, 3] and is FP64[n, 3]"),
        ((TensorSpec("x", "FP32", (1, 3)),), (Y,), "input 'x' was FP32[n, 3] and is FP32[1, 3]"),
        ((TensorSpec("x", "FP32", ("n", 4)),), (Y,), "input 'x' was FP32[n, 3] and is FP32[n, 4]"),
        ((TensorSpec("x", "FP32", ("n", 3, 1)),), (Y,), "input 'x' was FP32[n, 3] and is FP32[n, 3, 1]"),
        (
            (TensorSpec("z", "FP32", ("n", 3)),),
            (Y,),
            "input 'x' is gone; input 'z' is new (z: FP32[n, 3])",
        ),
        ((X,), (TensorSpec("z", "FP32", ("n",)),), "output 'y' is gone"),
        ((X,), (TensorSpec("y", "INT64", ("n",)),), "output 'y' was FP32[n] and is INT64[n]"),
    ],
)
def test_what_callers_would_notice_is_told(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], told: str
) -> None:
    assert difference(Signature((X,), (Y,)), Signature(inputs, outputs)) == told


def test_few_of_many_differences_are_told() -> None:
    many = signature(*[("n",)] * 9)
    assert difference(many, signature()).endswith("; input 'x3' is gone, and 5 more")
