"""Lists of arrays, and of lists. A list that was made is never changed: it may be in several registers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import DataFault
from libs.runtime.ledger import Items, bytes_of

MOST_ITEMS = 1 << 20
_ITEM_BYTES = 8


def _place(position: Any, count: int, *, inclusive: bool) -> int:
    if position.size != 1:
        raise DataFault(f"a position has the shape {list(position.shape)}, not one element")
    place = int(position.reshape(-1)[0])
    if not -count <= place < count + (1 if inclusive else 0):
        raise DataFault(f"position {place} is outside of a sequence of {count}")
    return place


def empty(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return an empty list."""
    return [Items()]


def insert(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return a list with one item more."""
    items, item = inputs[0], inputs[1]
    if len(items) >= MOST_ITEMS:
        raise DataFault(f"a sequence gets more than {MOST_ITEMS} items")
    limits.take(_ITEM_BYTES * (len(items) + 1))
    place = len(items) if len(inputs) < 3 else _place(inputs[2], len(items), inclusive=True)
    copy = Items(items)
    copy.insert(place, item)
    return [copy]


def erase(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return a list with one item less."""
    items = inputs[0]
    if not items:
        raise DataFault("a sequence is empty: there is nothing to erase")
    limits.take(_ITEM_BYTES * len(items))
    place = -1 if len(inputs) < 2 else _place(inputs[1], len(items), inclusive=False)
    copy = Items(items)
    del copy[place]
    return [copy]


def at(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return an item."""
    return [inputs[0][_place(inputs[1], len(inputs[0]), inclusive=False)]]


def length(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return how many items there are."""
    return [np.array(len(inputs[0]), np.int64)]


def concat(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return the tensors joined along an axis, or stacked along a new one."""
    items, (axis, stacked) = inputs[0], integers
    if not items:
        raise DataFault("a sequence is empty: there is nothing to join")
    limits.take(sum(bytes_of(item) for item in items))
    try:
        return [np.stack(items, axis) if stacked else np.concatenate(items, axis)]
    except (ValueError, np.exceptions.AxisError) as error:
        shapes = ", ".join(str(list(item.shape)) for item in items[:4])
        raise DataFault(f"arrays of shapes {shapes} can't be joined along axis {axis}") from error
