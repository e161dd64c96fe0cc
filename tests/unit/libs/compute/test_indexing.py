"""Reading by index against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute.tensor import Tensor, asarray

SHAPE = (3, 4, 5)
X = np.arange(60).reshape(SHAPE)


def same(key: Any, x: np.ndarray[Any, Any] = X) -> None:
    wanted = x[key]
    found = np.asarray(asarray(x)[key])
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def slices(size: int) -> st.SearchStrategy[slice]:
    ends = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, ends, ends, st.none() | st.integers(-3, 3).filter(bool))


def keys(axis: int) -> st.SearchStrategy[Any]:
    size = SHAPE[axis]
    return (
        slices(size)
        | st.integers(-size, size - 1)
        | st.lists(st.integers(-size, size - 1), min_size=2, max_size=2)
        | st.just(np.array([[0, -1]]))
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_all_that_can_be_mixed(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 3))
    key = [data.draw(keys(axis)) for axis in range(count)]
    if data.draw(st.booleans()):
        key.insert(data.draw(st.integers(0, len(key))), None)
    if data.draw(st.booleans()):
        key.append(Ellipsis)
    same(tuple(key))


@pytest.mark.parametrize(
    "key",
    [
        ...,
        (),
        None,
        (..., 1),
        (1, ..., [0, 2]),
        ([0, 2], slice(None), [1, 3]),
        (slice(None), [0, 1], [2, 3]),
        ([0, 1], None, [1, 2]),
        (0, slice(None), [1, 2]),
        ([], slice(0, 2)),
        slice(5, 1),
        slice(None, None, -1),
        (slice(2, 0, -2), 1),
        np.int64(-1),
        np.array([True, False, True]),
        X % 7 == 0,
        (slice(None), np.array([True, False, False, True])),
        (X[:, :, 0] % 3 == 0, slice(1, 3)),
        (0, X[0] > 3),
        ([0], np.array([True, False, False, True]), slice(None)),
        np.zeros(3, bool),
    ],
)
def test_forms(key: Any) -> None:
    same(key)


def test_of_other_arrays() -> None:
    same(0, np.arange(3))
    same(slice(None, None, -2), np.arange(7.0))
    same((slice(None), 0), np.zeros((0, 3), np.int8))
    same((), np.array(7))
    same((None, ...), np.array(7))


def test_a_tensor_as_index() -> None:
    x = asarray(X)
    assert x[asarray(2)].tolist() == X[2].tolist()
    assert x[asarray([2, 0]), asarray([1, -1])].tolist() == X[[2, 0], [1, -1]].tolist()
    assert x[x > 55].tolist() == X[X > 55].tolist()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (3, "index 3 is out of range for an axis of size 3"),
        (-4, "index -4"),
        ((0, 0, 0, 0), "3 axes is indexed along 4"),
        ((..., ...), "two ellipses"),
        (True, "single boolean"),
        (0.5, "a float is no index"),
        ("name", "a str is no index"),
        ([0.5], "an index holds float64"),
        ([3], "index 3 is out of range"),
        ([-4], "index -4 is out of range"),
        (([0, 5], [1, 1]), "out of range"),
        (np.array([True, False]), r"mask of shape \[2\]"),
        (slice(None, None, 0), "step 0"),
        (([0, 1], [0, 1, 2]), "don't broadcast"),
    ],
)
def test_what_is_refused(key: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        asarray(X)[key]


def test_elements_are_not_assigned() -> None:
    x: Tensor = asarray(X)
    with pytest.raises(Invalid, match="arrays don't change"):
        x[0] = 1
