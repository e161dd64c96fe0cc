import numpy as np
import pytest

from libs.common.errors import Invalid
from services.serving.domain.tensors import Signature, Tensor, TensorSpec, check_inputs


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
