"""What is done at once stays within its arrays, and within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.compute.backend import Backend, Move
from libs.compute.eager import EAGER
from libs.runtime.plan import DataType

F32 = DataType.FLOAT32
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_it_is_a_backend() -> None:
    backend: Backend = EAGER
    assert backend.shape(X) == (2, 3)
    assert backend.type(X) is F32
    assert backend.known(X) is X


def test_moves_are_strided_views() -> None:
    assert EAGER.move(X, (3, 2), (1, 3)).tolist() == X.T.tolist()
    assert EAGER.move(X, (2, 3), (-3, -1), 5).tolist() == X[::-1, ::-1].tolist()
    assert EAGER.move(X, (2, 2), (0, 1), 1).tolist() == [[1, 2], [1, 2]]
    assert EAGER.move(X, (0, 2), (100, 1), 100).shape == (0, 2)


def test_rasters_write_regions_in_order_over_a_fill() -> None:
    moves = [Move(X, (3,), (1,), 0, (1,), 1), Move(X, (1,), (1,), 5, (1,), 2)]
    assert EAGER.raster(F32, (5,), moves, 9).tolist() == [9, 0, 5, 2, 9]
    assert EAGER.raster(F32, (2, 0), []).shape == (2, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: EAGER.move(X, (7,), (1,)),
        lambda: EAGER.move(X, (2,), (1,), 5),
        lambda: EAGER.move(X, (2,), (-1,), 0),
        lambda: EAGER.move(X, (1,), (1,), -1),
        lambda: EAGER.raster(F32, (3,), [Move(X, (4,), (1,), 0, (1,), 0)]),
        lambda: EAGER.move(X, (2, 2), (4, 3)),
        lambda: EAGER.raster(F32, (3,), [Move(X, (2,), (1,), 0, (3,), 0)], 0),
    ],
)
def test_nothing_is_read_or_written_outside(call: Any) -> None:
    with pytest.raises(Invalid, match="are wanted of an array that has"):
        call()


def test_no_memory_is_shown_that_nobody_wrote() -> None:
    with pytest.raises(Invalid, match="2 of 4 elements"):
        EAGER.raster(F32, (4,), [Move(X, (2,), (1,), 0, (1,), 0)])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: EAGER.elementwise("add", X, X.astype(np.int32)), "don't go together"),
        (lambda: EAGER.elementwise("add", X > 1, X > 1), "add doesn't take elements of type bool"),
        (lambda: EAGER.where(X, X, X), "not booleans"),
        (lambda: EAGER.reshape(X, (4,)), "6 elements"),
        (lambda: EAGER.reshape(X, (-2, -3)), "6 elements"),
        (lambda: EAGER.matmul(X, X), "can't be multiplied"),
        (lambda: EAGER.gather(X, np.array([0.0]), 0), "not int32 or int64"),
        (lambda: EAGER.gather(X, np.array([2]), 0), "index 2 is out of range"),
        (lambda: EAGER.scatter("scatter", X, np.array([-3]), X[:1]), "index -3 is out of range"),
        (lambda: EAGER.arg_max(X[:0], 0), "no extreme"),
        (lambda: EAGER.sizes(np.array([-1])), "0 or more"),
        (lambda: EAGER.equal(2, 3), "must be equal"),
        (lambda: EAGER.bit_cast(X, DataType.INT64), "other widths"),
        (lambda: EAGER.decode_image(X, "RGB"), "a vector of uint8"),
        (lambda: EAGER.broadcast(X, (2, 2)), "don't broadcast"),
        (lambda: EAGER.arange(-1), "below 0"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: EAGER.broadcast(X[:1, :1], (1 << 20, 1 << 20)),
        lambda: EAGER.arange(1 << 40),
        lambda: EAGER.raster(F32, (1 << 40,), [], 0),
        lambda: EAGER.move(X, (1 << 20, 1 << 20), (0, 0)),
    ],
)
def test_memory_is_bounded_before_it_is_taken(call: Any) -> None:
    with pytest.raises(Exhausted, match="would take more than"):
        call()


def test_loops_run_until_they_say_so() -> None:
    def double(number: Any, state: list[Any]) -> Any:
        return state[0] < 10, [state[0] * 2]

    assert EAGER.loop(None, [np.array(1)], double)[0] == 32
    assert EAGER.loop(2, [np.array(1)], double)[0] == 4
    assert EAGER.loop(0, [np.array(1)], double)[0] == 1


def test_values_never_change() -> None:
    x = np.arange(4.0)
    kept = x.copy()
    for value in (EAGER.reshape(x, (2, 2)), EAGER.transpose(x, (0,)), EAGER.elementwise("neg", x)):
        EAGER.scatter("scatter_add", np.atleast_1d(value.reshape(-1)), np.array([0]), np.array([5.0]))
    np.testing.assert_array_equal(x, kept)
