"""What functions don't take, they refuse; the commonest of them in their own names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.compute import matrix

ARRAY = np.zeros(3)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.interp(ARRAY, [0, 1], [0, 1, 2]), "interp: xp and fp have as many elements"),
        (lambda: matrix.dot(ARRAY, np.zeros(4)), "dot: axis 0 of a, of size 3, doesn't fit axis 0 of b"),
        (lambda: matrix.vdot(ARRAY, np.zeros(4)), "vdot: axis 0 of a, of size 3, doesn't fit axis 0 of b"),
        (lambda: matrix.sum(ARRAY, axis=5), "sum: axis 5 is out of range"),
        (lambda: matrix.prod(ARRAY, axis="x"), "prod: axis 'x' is no integer"),
        (lambda: matrix.max(ARRAY, axis=(0, -1)), "max: axes (0, -1) name one twice"),
        (lambda: matrix.choose([0, 7, 1], [ARRAY, ARRAY]), "choose: a holds 7; there are 2 choices"),
        (lambda: matrix.choose([0, -1, 1], [ARRAY, ARRAY]), "choose: a holds -1"),
        (lambda: matrix.choose([0], []), "choose: choices is a list"),
        (lambda: matrix.choose([0], 5), "choose: choices is a list"),
        (lambda: matrix.histogram(ARRAY, bins=0), "histogram: bins is 0"),
        (lambda: matrix.histogram_bin_edges(ARRAY, 0), "histogram_bin_edges: bins is 0"),
        (lambda: matrix.less(ARRAY, "x"), "less: an array can't be made of a str"),
        (lambda: matrix.add(ARRAY, "x"), "add: an array can't be made of a str"),
        (lambda: matrix.multiply(ARRAY.astype("complex64"), 2), "multiply: elements of type complex64"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(Exhausted, match=r"a value of shape \[1073741824, 1073741824\] would take"):
        matrix.zeros((1 << 30, 1 << 30))


def test_types_that_are_named_are_those_that_are_computed_with() -> None:
    with pytest.raises(Invalid) as caught:
        matrix.zeros(3, "number")
    _, _, names = str(caught.value).partition("use one of ")
    for name in names.split(", "):
        assert matrix.add(matrix.zeros(3, name), matrix.ones(3, name)).tolist() == [1, 1, 1]
