"""Sets and counts: distinct elements, membership, histograms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from libs.common.errors import Invalid
from libs.compute import ordering
from libs.compute.axes import flag_of, listed, naming, number_of, whole_of
from libs.compute.backend import Backend, Value, int_or_none, product
from libs.compute.promotion import COMPUTED, INTEGERS
from libs.compute.tensor import Tensor, asarray, tensors_of, together
from libs.runtime.plan import DataType

__all__ = [
    "bincount",
    "histogram",
    "histogram_bin_edges",
    "intersect1d",
    "isin",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

MOST_BINS = 1 << 24


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def _distinct(thing: Any, equal_nan: bool) -> UniqueAll:
    tensor = asarray(thing)
    if tensor.type not in COMPUTED:
        raise Invalid(f"elements of type {tensor.dtype} have no order: convert them with astype")
    b = tensor.backend
    values, first, number, counts = ordering.distinct(b, tensor.ravel().value, equal_nan=equal_nan)
    return UniqueAll(
        Tensor(b, values),
        Tensor(b, first),
        Tensor(b, b.reshape(number, tensor.shape)),
        Tensor(b, counts),
    )


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
) -> Any:
    """Return the distinct elements, ascending.

    If asked, also where each comes first, which of them each element is, and how often each comes.
    """
    found = _distinct(ar, flag_of(equal_nan, "unique", "equal_nan"))
    flags = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    extra = [
        each
        for each, (name, wanted) in zip(found[1:], flags.items(), strict=True)
        if flag_of(wanted, "unique", name)
    ]
    return (found.values, *extra) if extra else found.values


def unique_all(x: Any, /) -> UniqueAll:
    """Return distinct elements, where each is first, which each element is, how often; NaN are distinct."""
    return _distinct(x, equal_nan=False)


def unique_counts(x: Any, /) -> UniqueCounts:
    """Return distinct elements, and how often each comes; NaN are distinct."""
    found = _distinct(x, equal_nan=False)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return distinct elements, and for each element which of them it is; NaN are distinct."""
    found = _distinct(x, equal_nan=False)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Tensor:
    """Return distinct elements; NaN are distinct."""
    return _distinct(x, equal_nan=False).values


def _vectors(x: Any, y: Any) -> tuple[Backend, Value, Value]:
    """Return the elements of two arrays as vectors of one type."""
    b, (one, other), _ = together(asarray(x), asarray(y))
    flat = [b.reshape(value, (product(b.shape(value)),)) for value in (one, other)]
    return b, flat[0], flat[1]


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Tell which elements are among others; `assume_unique` changes nothing."""
    wanted, invert = asarray(element), flag_of(invert, "isin", "invert")
    b, one, other = _vectors(wanted, test_elements)
    found = b.reshape(_among(b, one, other), wanted.shape)
    return Tensor(b, b.elementwise("not", found) if invert else found)


def _among(b: Backend, wanted: Value, others: Value) -> Value:
    """Tell of each in a vector whether it is in another: it has more that are as large there than smaller."""
    ordered = ordering.in_order(b, others, 0)
    below = ordering.search_sorted(b, ordered, wanted, right=False)
    to_it = ordering.search_sorted(b, ordered, wanted, right=True)
    # NaN is equal to nothing.
    return b.elementwise("and", b.elementwise("lt", below, to_it), b.elementwise("eq", wanted, wanted))


def _kept(b: Backend, x: Value, mask: Value) -> Tensor:
    return Tensor(b, b.gather(x, ordering.true_places(b, mask), 0))


def _one_of_each(b: Backend, x: Value) -> Value:
    return ordering.distinct(b, x, equal_nan=True)[0]


def union1d(ar1: Any, ar2: Any) -> Tensor:
    """Return what is in either of two arrays, distinct and ascending."""
    b, one, other = _vectors(ar1, ar2)
    return Tensor(b, _one_of_each(b, ordering.joined(b, one, other)))


def intersect1d(ar1: Any, ar2: Any) -> Tensor:
    """Return what is in both of two arrays, distinct and ascending."""
    b, one, other = _vectors(ar1, ar2)
    kinds = _one_of_each(b, one)
    return _kept(b, kinds, _among(b, kinds, other))


def setdiff1d(ar1: Any, ar2: Any) -> Tensor:
    """Return what is in the first of two arrays but not in the second, distinct and ascending."""
    b, one, other = _vectors(ar1, ar2)
    kinds = _one_of_each(b, one)
    return _kept(b, kinds, b.elementwise("not", _among(b, kinds, other)))


def setxor1d(ar1: Any, ar2: Any) -> Tensor:
    """Return what is in one of two arrays but not in both, distinct and ascending."""
    b, one, other = _vectors(ar1, ar2)
    kinds = [_one_of_each(b, each) for each in (one, other)]
    lone = [
        _kept(b, mine, b.elementwise("not", _among(b, mine, theirs))).value
        for mine, theirs in (kinds, reversed(kinds))
    ]
    return Tensor(b, ordering.in_order(b, ordering.joined(b, lone[0], lone[1]), 0))


# Counts


def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Tensor:
    """Return how often each of 0, 1, … comes in a vector of integers, or the sum of the weights there."""
    places = asarray(x)
    if places.ndim != 1 or (places.type not in INTEGERS and int_or_none(places.size) != 0):
        raise Invalid(f"bincount counts a vector of integers, not {places.dtype} of {places.ndim} axes")
    least = whole_of(minlength, "bincount", "minlength")
    if not 0 <= least <= MOST_BINS:
        raise Invalid(f"minlength is 0 to {MOST_BINS}, not {least}")
    b = places.backend
    value = b.cast(places.value, DataType.INT64)
    known = b.known(value)
    if known is not None and known.size:
        if int(known.min()) < 0:
            raise Invalid(f"bincount counts from 0; {int(known.min())} is below")
        if int(known.max()) >= MOST_BINS:
            raise Invalid(f"bincount counts up to {MOST_BINS - 1}, not {int(known.max())}")
    all_ = ordering.joined(b, value, b.constant(np.array([least - 1])))
    one = b.scalar(1, DataType.INT64)
    size = b.size(b.elementwise("add", b.reduce("reduce_max", all_, (0,), keep=False), one))
    if weights is None:
        counted, type_ = Tensor(b, b.broadcast(one, places.shape)), DataType.INT64
    else:
        place, counted = tensors_of(places, weights)
        b, type_ = counted.backend, DataType.FLOAT64
        if counted.ndim != 1:
            raise Invalid(f"weights are a vector, not of {counted.ndim} axes")
        with naming("bincount: weights"):
            b.equal(place.shape[0], counted.shape[0])
        counted = counted.astype(type_)
        value = b.cast(place.value, DataType.INT64)
    # What is below 0 in a plan is out of range, not counted from the end.
    below = b.elementwise("lt", value, b.scalar(0, DataType.INT64))
    value = b.where(below, b.extent(size, DataType.INT64), value)
    none = b.broadcast(b.scalar(0, type_), (size,))
    return Tensor(b, b.scatter("scatter_add", none, value, counted.value))


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None) -> Tensor:
    """Return the edges of bins of one width from the smallest to the largest element, or over a range."""
    return _bin_edges("histogram_bin_edges", a, bins, range)


def _bin_edges(call: str, a: Any, bins: Any, range: Any) -> Tensor:
    tensor = asarray(a).ravel()
    if not isinstance(bins, int | np.integer):
        if isinstance(bins, str):
            raise Invalid(f"{call}: bins are a number of them, or their edges, not the rule {bins!r}")
        edges = asarray(bins)
        known = edges.backend.known(edges.value)
        if edges.ndim != 1 or (known is not None and not (known[1:] >= known[:-1]).all()):
            raise Invalid(f"{call}: the edges of bins are an ascending vector")
        return edges
    count = whole_of(bins, call, "bins")
    if not 1 <= count <= MOST_BINS:
        raise Invalid(f"{call}: bins is {count}; there are 1 to {MOST_BINS}")
    if range is None and int_or_none(tensor.size) == 0:
        range = (0.0, 1.0)
    if range is not None:
        ends = listed(range, call, "range")
        if len(ends) != 2:
            raise Invalid(f"{call}: range has two ends, not {len(ends)}")
        low, high = (number_of(end, call, "range") for end in ends)
        if not low <= high or not np.isfinite([low, high]).all():
            raise Invalid(
                f"{call}: range goes from a finite number to another that isn't below, not {low} to {high}"
            )
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        return asarray(np.linspace(low, high, count + 1))
    return _edges_of(tensor, count)


def _edges_of(tensor: Tensor, count: int) -> Tensor:
    b = tensor.backend
    value = b.cast(tensor.value, DataType.FLOAT64)
    low, high = (b.reduce(f"reduce_{end}", value, (0,), keep=False) for end in ("min", "max"))
    width = b.known(b.elementwise("sub", high, low))
    if width is not None and not np.isfinite(width):
        raise Invalid("bins over elements that are infinite or NaN need a range")
    half = b.scalar(0.5, DataType.FLOAT64)
    flat = b.elementwise("eq", low, high)
    low, high = (
        b.where(flat, b.elementwise(operator, end, half), end)
        for operator, end in (("sub", low), ("add", high))
    )
    step = b.elementwise("div", b.elementwise("sub", high, low), b.scalar(count, DataType.FLOAT64))
    counted = b.constant(np.arange(count + 1, dtype=np.float64))
    edges = b.elementwise("add", b.elementwise("mul", counted, step), low)
    last = b.constant(np.arange(count + 1) == count)
    return Tensor(b, b.where(last, high, edges))


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Tensor, Tensor]:
    """Return how many elements each bin has (or the sum of their weights), and the bins' edges.

    A bin has its lower edge and not the upper one, but for the last, which has both. `density`: the counts
    are divided so that their integral is 1.
    """
    edges, density = _bin_edges("histogram", a, bins, range), flag_of(density, "histogram", "density")
    b, (value, limits), _ = together(asarray(a).ravel(), edges)
    value_size, (points,) = b.shape(value)[0], b.shape(limits)
    # The bin of an element is the number of edges that it is not below, without the first.
    reached = ordering.search_sorted(b, limits, value, right=True)
    last = b.move(limits, (), (), points - 1)
    at_end = b.cast(b.elementwise("eq", value, last), DataType.INT64)
    place = b.elementwise("sub", reached, at_end)
    # Nothing but what is within counts: what is below and above goes into bins of its own.
    absent = b.elementwise("not", b.elementwise("eq", value, value))
    place = b.where(absent, b.scalar(0, DataType.INT64), place)
    if weights is None:
        counted, type_ = b.broadcast(b.scalar(1, DataType.INT64), (value_size,)), DataType.INT64
    else:
        weight, first = tensors_of(asarray(weights).ravel(), Tensor(b, value))
        with naming("histogram: weights"):
            b.equal(weight.shape[0], first.shape[0])
        type_ = weight.type if weight.type is not DataType.BOOL else DataType.INT64
        counted = weight.astype(type_).value
    none = b.broadcast(b.scalar(0, type_), (points + 1,))
    counts = Tensor(b, b.move(b.scatter("scatter_add", none, place, counted), (points - 1,), (1,), 1))
    if not density:
        return counts, edges
    widths = Tensor(b, limits)[1:] - Tensor(b, limits)[:-1]
    total = Tensor(b, b.reduce("reduce_sum", counts.value, (0,), keep=False))
    return counts / widths.astype("float64") / total, edges
