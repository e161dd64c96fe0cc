"""Running sums and products, differences, convolution, interpolation."""

from __future__ import annotations

from typing import Any

from libs.common.errors import Invalid
from libs.compute.axes import axes_of, axis_of, flag_of, number_of, one_of, whole_of
from libs.compute.backend import Backend, Move, Size, Value, int_or_none
from libs.compute.matrix.joining import concatenate
from libs.compute.matrix.logic import not_equal
from libs.compute.matrix.logic import where as choose
from libs.compute.matrix.reduction import sum as total_of
from libs.compute.matrix.reduction import summing
from libs.compute.matrix.shaping import broadcast_to
from libs.compute.ordering import search_sorted
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, asarray, tensors_of, together
from libs.runtime.plan import DataType

__all__ = [
    "convolve",
    "correlate",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "ediff1d",
    "gradient",
    "interp",
    "trapezoid",
]


def _along(call: str, a: Any, axis: Any) -> tuple[Tensor, int]:
    tensor = asarray(a)
    return (tensor.reshape(-1), 0) if axis is None else (tensor, axis_of(axis, tensor.ndim, call))


def cumsum(a: Any, axis: Any = None, dtype: object = None) -> Tensor:
    """Return running sums along an axis; None: of all elements, as a vector."""
    tensor, place = _along("cumsum", a, axis)
    tensor = tensor.astype(summing(tensor.type, dtype))
    if not tensor.ndim:
        tensor = tensor.reshape(1)
    return Tensor(tensor.backend, tensor.backend.cumulative_sum(tensor.value, place))


def cumprod(a: Any, axis: Any = None, dtype: object = None) -> Tensor:
    """Return running products along an axis; None: of all elements, as a vector."""
    tensor, place = _along("cumprod", a, axis)
    tensor = tensor.astype(summing(tensor.type, dtype))
    return Tensor(tensor.backend, _running_product(tensor.backend, tensor.value, place))


def _running_product(b: Backend, x: Value, axis: int) -> Value:
    """Return running products, in rounds that each double how many factors are in.

    (Hillis and Steele, "Data parallel algorithms", Communications of the ACM 29, 1986.)
    """
    shape = b.shape(x)
    size: Size = shape[axis]
    one, counted = b.scalar(1, b.type(x)), b.arange(size)
    column = (size, *[1] * (len(shape) - 1 - axis))
    end = b.extent(size, DataType.INT64)

    def double(_: Value, state: list[Value]) -> tuple[Value, list[Value]]:
        step, value = state
        places = b.elementwise("sub", counted, step)
        inside = b.elementwise("le", b.scalar(0, DataType.INT64), places)
        taken = b.gather(value, b.where(inside, places, b.scalar(0, DataType.INT64)), axis)
        factor = b.where(b.reshape(inside, column), taken, one)
        after = b.elementwise("add", step, step)
        return b.elementwise("lt", after, end), [after, b.elementwise("mul", value, factor)]

    # Nothing is left to do after one round less than bits of the size.
    known = int_or_none(size)
    if known is not None and known < 2:
        return x
    _, result = b.loop(
        64 if known is None else (known - 1).bit_length(), [b.scalar(1, DataType.INT64), x], double
    )
    return result


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Tensor:
    """Return running sums along an axis, `include_initial` with a 0 before them."""
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Tensor:
    """Return running products along an axis, `include_initial` with a 1 before them."""
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial)


def _cumulative(name: str, x: Any, axis: int | None, dtype: object, first: bool) -> Tensor:
    tensor = asarray(x)
    if axis is None and tensor.ndim != 1:
        raise Invalid(f"{name}: an array of {tensor.ndim} axes needs the axis named")
    first = flag_of(first, name, "include_initial")
    place = axis_of(0 if axis is None else axis, tensor.ndim, name)
    found = (cumsum if name == "cumulative_sum" else cumprod)(tensor, place, dtype)
    if not first:
        return found
    start = asarray(int(name == "cumulative_prod")).astype(found.type)
    lead = broadcast_to(tensors_of(start, found)[0], (*found.shape[:place], 1, *found.shape[place + 1 :]))
    return concatenate([lead, found], place)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Return differences of neighbours along an axis, n times over."""
    tensor, times = asarray(a), whole_of(n, "diff", "n")
    if times < 0:
        raise Invalid(f"diff: n is {times}; it must be 0 or more")
    place = axis_of(axis, tensor.ndim, "diff")
    if times == 0:
        return tensor
    parts = [tensor]
    for given, before in ((prepend, True), (append, False)):
        if given is not None:
            other = asarray(given)
            if not other.ndim:
                other = broadcast_to(other, (*tensor.shape[:place], 1, *tensor.shape[place + 1 :]))
            parts = [other, *parts] if before else [*parts, other]
    tensor = concatenate(parts, place) if len(parts) > 1 else tensor
    lead = (slice(None),) * place
    for _ in range(times):
        later, earlier = tensor[(*lead, slice(1, None))], tensor[(*lead, slice(None, -1))]
        tensor = not_equal(later, earlier) if tensor.type is DataType.BOOL else later - earlier
    return tensor


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """Return differences of neighbours of all elements, with something before and after."""
    found = diff(asarray(ary).reshape(-1))
    parts = [
        asarray(each).reshape(-1).astype(found.type) if each is not found else found
        for each in (to_begin, found, to_end)
        if each is not None
    ]
    return concatenate(parts) if len(parts) > 1 else found


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return derivatives along axes by central differences, of first or second order at the edges.

    `varargs`: the distance of neighbours, one for all axes or each, or the places themselves.
    """
    tensor = asarray(f)
    tensor = tensor if tensor.type in FLOATS else tensor.astype(DataType.FLOAT64)
    axes = axes_of(axis, tensor.ndim, "gradient")
    given = list(varargs) or [1.0]
    if len(given) == 1:
        given = given * len(axes)
    if len(given) != len(axes):
        raise Invalid(f"gradient: {len(varargs)} distances for {len(axes)} axes")
    edge_order = whole_of(edge_order, "gradient", "edge_order", 1, 2)
    found = [_gradient(tensor, place, space, edge_order) for place, space in zip(axes, given, strict=True)]
    return found[0] if len(found) == 1 and (axis is not None or tensor.ndim == 1) else tuple(found)


def _gradient(tensor: Tensor, axis: int, spacing: Any, order: int) -> Tensor:
    size = int_or_none(tensor.shape[axis])
    if size is not None and size < order + 1:
        raise Invalid(f"gradient: axis {axis} has {size} places; {order + 1} are needed")
    lead = (slice(None),) * axis

    def part(start: int | None, stop: int | None) -> Tensor:
        return tensor[(*lead, slice(start, stop))]

    places = asarray(spacing)
    if not places.ndim:
        inner = (part(2, None) - part(None, -2)) / (2.0 * places)
        if order == 1:
            first, last = (part(1, 2) - part(0, 1)) / places, (part(-1, None) - part(-2, -1)) / places
        else:
            first = (-1.5 * part(0, 1) + 2.0 * part(1, 2) - 0.5 * part(2, 3)) / places
            last = (0.5 * part(-3, -2) - 2.0 * part(-2, -1) + 1.5 * part(-1, None)) / places
        return concatenate([first, inner, last], axis).astype(tensor.type)
    shape = (-1, *[1] * (tensor.ndim - 1 - axis))
    steps = diff(places.astype(DataType.FLOAT64))
    before, after = steps[:-1].reshape(*shape), steps[1:].reshape(*shape)
    inner = (
        part(None, -2) * (-after / (before * (before + after)))
        + part(1, -1) * ((after - before) / (before * after))
        + part(2, None) * (before / (after * (before + after)))
    )
    if order == 1:
        first = (part(1, 2) - part(0, 1)) / steps[:1].reshape(*shape)
        last = (part(-1, None) - part(-2, -1)) / steps[-1:].reshape(*shape)
    else:
        low, next_ = steps[0], steps[1]
        first = (
            part(0, 1) * (-(2.0 * low + next_) / (low * (low + next_)))
            + part(1, 2) * ((low + next_) / (low * next_))
            + part(2, 3) * (-low / (next_ * (low + next_)))
        )
        high, previous = steps[-1], steps[-2]
        last = (
            part(-3, -2) * (high / (previous * (previous + high)))
            + part(-2, -1) * (-(high + previous) / (previous * high))
            + part(-1, None) * ((2.0 * high + previous) / (high * (previous + high)))
        )
    return concatenate([first, inner, last], axis).astype(tensor.type)


def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """Return the areas under lines through points along an axis."""
    values = asarray(y)
    place = axis_of(axis, values.ndim, "trapezoid")
    lead = (slice(None),) * place
    if x is None:
        width: Any = dx
    else:
        width = asarray(x)
        width = diff(width, axis=place if width.ndim > 1 else 0)
        if width.ndim == 1:
            width = width.reshape(-1, *[1] * (values.ndim - 1 - place))
    middle = values[(*lead, slice(1, None))] + values[(*lead, slice(None, -1))]
    return total_of(width * middle / 2.0, place)


def convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    """Return the convolution of two vectors: Σ a[m]·v[n - m].

    `mode`: "full" wherever they overlap; "same" as many as the longer has, from the middle; "valid" where
    they overlap wholly.
    """
    return convolved("convolve", a, v, mode)


def convolved(call: str, a: Any, v: Any, mode: str = "full") -> Tensor:
    """Return what `convolve` does, and refuse in the name of `call`."""
    one, other = _vectors(call, a, v)
    if _length(one, call) < _length(other, call):
        one, other = other, one
    return _sliding(call, one, other[::-1], mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    """Return the correlation of two vectors: Σ a[n + m]·v[m]. Modes as for `convolve`."""
    one, other = _vectors("correlate", a, v)
    if _length(one, "correlate") < _length(other, "correlate"):
        return _sliding("correlate", other, one, mode)[::-1]
    return _sliding("correlate", one, other, mode)


def _length(tensor: Tensor, call: str) -> int:
    if tensor.ndim > 1:
        raise Invalid(f"{call}: a convolution is one of vectors, not of arrays of {tensor.ndim} axes")
    count = int_or_none(tensor.size)
    if count is None:
        raise Invalid(
            f"{call}: the length {tensor.size} of what is convolved must be known when it is traced"
        )
    if not count:
        raise Invalid(f"{call}: a convolution needs an element or more")
    return count


def _sliding(call: str, long: Tensor, short: Tensor, mode: str) -> Tensor:
    many, few = _length(long, call), _length(short, call)
    one_of(mode, ("full", "same", "valid"), call, "mode")
    before = {"full": few - 1, "same": few // 2, "valid": 0}[mode]
    count = {"full": many + few - 1, "same": many, "valid": many - few + 1}[mode]
    b, type_ = long.backend, long.type
    computed = DataType.INT8 if type_ is DataType.BOOL else type_
    room = count + few - 1
    source = b.reshape(b.cast(long.value, computed), (many,))
    wide = b.raster(computed, (room,), [Move(source, (many,), (1,), 0, (1,), before)], 0)
    windows = b.move(wide, (count, few), (1, 1))
    weights = b.reshape(b.cast(short.value, computed), (few, 1))
    return Tensor(b, b.cast(b.reshape(b.matmul(windows, weights), (count,)), type_))


def _vectors(call: str, a: Any, v: Any) -> tuple[Tensor, Tensor]:
    try:
        b, values, _ = together(a, v)
    except Invalid as error:
        raise Invalid(f"{call}: {error}") from None
    first, second = (Tensor(b, value) for value in values)
    return first, second


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None
) -> Tensor:
    """Return the broken line through points (xp, fp), xp ascending, at x; `left` and `right` beyond it.

    With a `period`, xp are brought into one, and put in order.
    """
    wanted, places, values = (each.astype(DataType.FLOAT64) for each in tensors_of(x, xp, fp))
    if places.ndim != 1 or values.ndim != 1:
        raise Invalid("interp: xp and fp are vectors")
    if int_or_none(places.shape[0]) == 0:
        raise Invalid("interp: xp and fp have no points")
    b = wanted.backend
    try:
        b.equal(places.shape[0], values.shape[0])
    except Invalid as error:
        raise Invalid(f"interp: xp and fp have as many elements as one another: {error}") from None
    if period is not None:
        period = number_of(period, "interp", "period")
        if period == 0:
            raise Invalid("interp: period is 0")
        wanted, places = wanted % abs(period), places % abs(period)
        order = b.arg_sort(places.value, 0)
        places, values = (Tensor(b, b.gather(each.value, order, 0)) for each in (places, values))
        places = concatenate([places[-1:] - abs(period), places, places[:1] + abs(period)])
        values = concatenate([values[-1:], values, values[:1]])
    flat = wanted.reshape(-1)
    found = Tensor(b, search_sorted(b, places.value, flat.value, right=True)) - 1
    count = places.shape[0]
    last = Tensor(b, b.extent(count, DataType.INT64)) - 1
    below = choose(found < 0, 0, found)
    low = choose(below < last, below, choose(last < 1, 0, last - 1))
    high = choose(low < last, low + 1, last)
    x0, x1, y0, y1 = places[low], places[high], values[low], values[high]
    flatness = x1 == x0
    slope = (y1 - y0) / choose(flatness, 1.0, x1 - x0)
    result = slope * (flat - x0) + y0
    # Where a value isn't finite, the nearer end counts.
    result = choose(flat == x1, y1, result)
    result = choose(flat < places[0], values[0] if left is None else left, result)
    result = choose(flat > places[-1], values[-1] if right is None else right, result)
    result = choose(not_equal(flat, flat), flat, result)
    found = asarray(result)
    return found.reshape(wanted.shape)
