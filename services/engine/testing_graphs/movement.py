"""Random nodes that move data, index it, and make it of shapes."""

from __future__ import annotations

import math

import numpy as np

from services.engine.testing_graphs.elementwise import NUMBERS, axis_of
from services.engine.testing_graphs.sketch import FLOATS, Item, Sketch

ANY = (*NUMBERS, "bool", "object")
_HUGE = (1 << 63) - 1


def reshape(s: Sketch) -> list[Item]:
    """Other sizes: one may be left open, some kept."""
    x = s.pick(ANY)
    total, d = x.value.size, s.draw
    sizes: list[int] = []
    left = total
    for _ in range(d.integer(0, 3)):
        size = d.choice([each for each in range(1, left + 1) if left % each == 0])
        sizes.append(size)
        left //= size
    if left != 1 or d.boolean():
        sizes.append(left)
    if sizes and d.boolean():
        sizes[d.integer(0, len(sizes) - 1)] = -1
    sizes = [
        0 if axis < x.rank and size == x.shape[axis] and d.chance(3) else size
        for axis, size in enumerate(sizes)
    ]
    return s.apply("Reshape", [x, s.numbers(*sizes, constant=not d.chance(3))], exact=True)


def flatten(s: Sketch) -> list[Item]:
    """Two axes."""
    x = s.pick(ANY)
    return s.apply("Flatten", [x], exact=True, axis=s.draw.integer(-x.rank, x.rank))


def transpose(s: Sketch) -> list[Item]:
    """Axes in another order."""
    x = s.pick(ANY)
    if s.draw.chance(4):
        return s.apply("Transpose", [x], exact=True)
    return s.apply("Transpose", [x], exact=True, perm=s.draw.permutation(x.rank))


def squeeze(s: Sketch) -> list[Item]:
    """Axes of size 1 go."""
    x = s.pick(ANY, where=lambda item: 1 in item.shape, new=lambda: s.draw.array((2, 1, 3, 1), "float32"))
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if s.draw.chance(4):
        return s.apply("Squeeze", [x], exact=True)
    axes = [axis - x.rank * s.draw.integer(0, 1) for axis in s.draw.some(ones)]
    return s.apply("Squeeze", [x, s.numbers(*axes)], exact=True)


def unsqueeze(s: Sketch) -> list[Item]:
    """Axes of size 1 come."""
    x = s.pick(ANY, 0, 3)
    count = s.draw.integer(1, 2)
    axes = [
        axis - (x.rank + count) * s.draw.integer(0, 1) for axis in s.draw.some(range(x.rank + count), count)
    ]
    return s.apply("Unsqueeze", [x, s.numbers(*axes[:count])], exact=True)


def expand(s: Sketch) -> list[Item]:
    """Broadcasting to a shape."""
    x = s.pick(ANY, 0, 3)
    d = s.draw
    shape = [size if size != 1 and d.boolean() else d.integer(1, 3) if size == 1 else 1 for size in x.shape]
    shape = [*d.integers(d.integer(0, 2), 1, 2), *shape] if d.boolean() else shape[d.integer(0, len(shape)) :]
    return s.apply("Expand", [x, s.numbers(*shape)], exact=True)


def tile(s: Sketch) -> list[Item]:
    """Repetition."""
    x = s.pick(ANY, 1)
    return s.apply("Tile", [x, s.numbers(*s.draw.integers(x.rank, 1, 3))], exact=True)


def concat(s: Sketch) -> list[Item]:
    """One after the other."""
    x = s.pick(ANY, 1)
    axis, d = axis_of(s, x.rank), s.draw
    parts = [x]
    for _ in range(d.integer(0, 2)):
        place = axis % x.rank
        shape = (*x.shape[:place], d.integer(1, 3), *x.shape[place + 1 :])
        parts.insert(d.integer(0, len(parts)), s.like(x, shape) if d.boolean() else x)
    return s.apply("Concat", parts, exact=True, axis=axis)


def split(s: Sketch) -> list[Item]:
    """In even or other pieces."""
    x = s.pick(ANY, 1)
    axis, d = axis_of(s, x.rank), s.draw
    size = x.shape[axis]
    count = d.integer(1, min(size, 3))
    if d.boolean():
        return s.apply("Split", [x], count, exact=True, axis=axis, num_outputs=count)
    cuts = sorted(d.integer(0, size) for _ in range(count - 1))
    sizes = np.diff([0, *cuts, size]).tolist()
    return s.apply("Split", [x, s.numbers(*sizes)], count, exact=True, axis=axis)


def cut(s: Sketch) -> list[Item]:
    """Slices by steps in both directions, beyond the ends too."""
    x = s.pick(ANY, 1)
    d = s.draw
    axes = d.some(range(x.rank))
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    for axis in axes:
        size, step = x.shape[axis], d.choice((1, 2, -1, 3, -2))
        # Backwards, ONNX begins at the first element where numpy leaves nothing.
        first, last = d.integer(-size - (step > 0), size + 1), d.integer(-size - 1, size + 1)
        if d.chance(4):
            last = _HUGE if step > 0 else -_HUGE
        starts, ends, steps = [*starts, first], [*ends, last], [*steps, step]
    known = not d.chance(3)
    given = [s.numbers(*each, constant=known or d.boolean()) for each in (starts, ends, axes, steps)]
    return s.apply("Slice", [x, *given], exact=True)


def pad(s: Sketch) -> list[Item]:
    """Borders of every mode, negative ones too."""
    x = s.pick((*FLOATS, "int64", "int32", "bool"), 1)
    d = s.draw
    mode = d.choice(("constant", "edge", "reflect", "wrap"))
    pads = []
    for _ in range(2):
        for size in x.shape:
            most = {"reflect": size - 1, "wrap": size}.get(mode, 2)
            pads.append(d.integer(-1 if size > 2 and mode == "constant" and d.chance(4) else 0, min(most, 2)))
    axes = None
    if d.chance(3):
        chosen = d.some(range(x.rank))
        pads = [pads[axis] for axis in chosen] + [pads[x.rank + axis] for axis in chosen]
        axes = s.numbers(*(axis - x.rank * d.integer(0, 1) for axis in chosen), constant=not d.chance(3))
    value = s.fresh(d.array((), x.dtype)) if mode == "constant" and d.boolean() else None
    return s.apply("Pad", [x, s.numbers(*pads, constant=not d.chance(3)), value, axes], exact=True, mode=mode)


def centred(s: Sketch) -> list[Item]:
    """Cut or padded about the middle."""
    x = s.pick(("float32", "int64"), 1)
    axes = s.draw.some(range(x.rank))
    sizes = s.numbers(*s.draw.integers(len(axes), 1, 5))
    return s.apply("CenterCropPad", [x, sizes], exact=True, axes=axes)


def indices(s: Sketch, shape: tuple[int, ...], size: int) -> Item:
    """Return indices below a size, counted from either end."""
    return s.fresh(
        s.draw.array(shape, s.draw.choice(("int64", "int32")), -size, size - 1), fixed=s.draw.boolean()
    )


def gather(s: Sketch) -> list[Item]:
    """Slices by indices."""
    x = s.pick(ANY, 1)
    axis = axis_of(s, x.rank)
    return s.apply("Gather", [x, indices(s, s.draw.shape(0, 2), x.shape[axis])], exact=True, axis=axis)


def gather_elements(s: Sketch) -> list[Item]:
    """Elements by indices along an axis."""
    x = s.pick(ANY, 1)
    axis = axis_of(s, x.rank)
    shape = list(x.shape)
    shape[axis] = s.draw.integer(1, 4)
    return s.apply("GatherElements", [x, indices(s, tuple(shape), x.shape[axis])], exact=True, axis=axis)


def _tuples(s: Sketch, x: Item, batch: int) -> Item:
    """Return tuples of indices of `x`, no two equal within a batch where something is put there."""
    d = s.draw
    depth = d.integer(1, x.rank - batch)
    inner = x.shape[batch : batch + depth]
    count = d.integer(1, min(3, math.prod(inner)))
    numbers = np.random.default_rng(d.integer(0, 999))
    rows = [
        np.stack(np.unravel_index(numbers.permutation(math.prod(inner))[:count], inner), -1)
        for _ in range(math.prod(x.shape[:batch]))
    ]
    array = np.array(rows).reshape(*x.shape[:batch], count, depth)
    if d.chance(3):
        array = array - np.array(inner)
    return s.fresh(array.astype(np.int64), fixed=True)


def gather_nd(s: Sketch) -> list[Item]:
    """Slices by tuples of indices."""
    x = s.pick(ANY, 1)
    batch = s.draw.integer(0, x.rank - 1)
    return s.apply("GatherND", [x, _tuples(s, x, batch)], exact=True, batch_dims=batch)


def scatter_nd(s: Sketch) -> list[Item]:
    """Slices put by tuples of indices."""
    x = s.pick(("float32", "int64", "float64", "int32"), 1)
    places = _tuples(s, x, 0)
    updates = s.like(x, (*places.shape[:-1], *x.shape[places.shape[-1] :]))
    how = s.draw.choice(("none", "add", "mul", "max", "min"))
    return s.apply("ScatterND", [x, places, updates], exact=True, reduction=how)


def scatter_elements(s: Sketch) -> list[Item]:
    """Elements put along an axis; equal indices only where they add up."""
    x = s.pick(("float32", "int64", "float64", "int32"), 1)
    axis, d = axis_of(s, x.rank), s.draw
    how = d.choice(("none", "add", "mul", "max", "min"))
    shape = [d.integer(1, size) for size in x.shape]
    size = x.shape[axis]
    if how == "none":
        numbers = np.random.default_rng(d.integer(0, 999))
        rows = numbers.permuted(np.broadcast_to(np.arange(size), (math.prod(shape), size)), axis=1)
        order = np.moveaxis(rows[: math.prod(shape) // shape[axis], : shape[axis]], 1, 0)
        moved = [shape[axis], *(each for place, each in enumerate(shape) if place != axis % x.rank)]
        places = s.fresh(np.moveaxis(order.reshape(moved), 0, axis).astype(np.int64))
    else:
        places = indices(s, tuple(shape), size)
    return s.apply("ScatterElements", [x, places, s.like(x, shape)], exact=True, axis=axis, reduction=how)


def blocks(s: Sketch) -> list[Item]:
    """Depth to space, and back."""
    d = s.draw
    dtype = d.choice(("float32", "float64"))
    if d.boolean():
        x = s.fresh(d.array((d.integer(1, 2), 4 * d.integer(1, 2), d.integer(1, 3), d.integer(1, 3)), dtype))
        return s.apply("DepthToSpace", [x], exact=True, blocksize=2, mode=d.choice(("DCR", "CRD")))
    x = s.fresh(d.array((d.integer(1, 2), d.integer(1, 3), 2 * d.integer(1, 2), 2 * d.integer(1, 2)), dtype))
    return s.apply("SpaceToDepth", [x], exact=True, blocksize=2)


def triangle(s: Sketch) -> list[Item]:
    """Upper and lower triangles."""
    x = s.pick(("float32", "int64", "bool", "int32"), 2)
    k = s.number(s.draw.integer(-3, 3)) if s.draw.boolean() else None
    return s.apply("Trilu", [x, k], exact=True, upper=s.draw.integer(0, 1))


def eye(s: Sketch) -> list[Item]:
    """Ones on a diagonal."""
    return s.apply("EyeLike", [s.pick(("float32", "int64"), 2, 2)], exact=True, k=s.draw.integer(-2, 2))


def reversed_rows(s: Sketch) -> list[Item]:
    """Sequences of several lengths backwards."""
    x = s.pick(("float32", "int64"), 2)
    batch = s.draw.integer(0, 1)
    lengths = s.fresh(s.draw.array((x.shape[batch],), "int64", 1, x.shape[1 - batch]))
    return s.apply("ReverseSequence", [x, lengths], exact=True, batch_axis=batch, time_axis=1 - batch)


def compress(s: Sketch) -> list[Item]:
    """Keep what a condition selects."""
    x = s.pick(ANY, 1)
    if s.draw.chance(3):
        return s.apply(
            "Compress", [x, s.fresh(s.draw.array((s.draw.integer(1, x.value.size),), "bool"))], exact=True
        )
    axis = axis_of(s, x.rank)
    return s.apply(
        "Compress",
        [x, s.fresh(s.draw.array((s.draw.integer(1, x.shape[axis]),), "bool"))],
        exact=True,
        axis=axis,
    )


def nonzero(s: Sketch) -> list[Item]:
    """Where something is."""
    return s.apply("NonZero", [s.pick(("float32", "int64", "bool", "int32"), 1, exact=True)], exact=True)


def unique(s: Sketch) -> list[Item]:
    """Each once."""
    x = s.pick(("float32", "int64", "float64"), 1, exact=True)
    if s.draw.boolean():
        return s.apply("Unique", [x], 4, exact=True, sorted=s.draw.integer(0, 1))
    # Unsorted along an axis, the evaluator is wrong.
    return s.apply("Unique", [x], 4, exact=True, axis=axis_of(s, x.rank))


def one_hot(s: Sketch) -> list[Item]:
    """Ones at indices."""
    x = s.pick(("int64", "int32", "uint8"), 0, 3, exact=True)
    depth = s.number(s.draw.integer(1, 5), constant=not s.draw.chance(3))
    values = s.fresh(s.draw.array((2,), s.draw.choice(("float32", "int64"))), fixed=True)
    return s.apply("OneHot", [x, depth, values], exact=True, axis=axis_of(s, x.rank, 1))


def sizes(s: Sketch) -> list[Item]:
    """Shapes as data."""
    x = s.pick(ANY)
    d = s.draw
    if d.chance(4):
        return s.apply("Size", [x], exact=True)
    # Before the first axis, the evaluator counts from the other end.
    ends = {"start": d.integer(-x.rank, x.rank + 1)} if d.boolean() else {}
    if d.boolean():
        ends["end"] = d.integer(-x.rank, x.rank + 1)
    return s.apply("Shape", [x], exact=True, **ends)


def filled(s: Sketch) -> list[Item]:
    """Of a shape that is data."""
    d = s.draw
    shape = s.pick(
        ("int64",),
        1,
        1,
        exact=True,
        where=lambda item: item.shape[0] <= 4 and item.value.min() > 0 and np.prod(item.value) < 200,
        new=lambda: np.array(d.shape(1, 3), np.int64),
    )
    if shape.name in s.root.inputs:
        s.root.fixed.add(shape.name)
    from onnx import numpy_helper

    value = numpy_helper.from_array(d.array((1,), d.choice(("float32", "int64", "bool"))))
    return s.apply("ConstantOfShape", [shape], exact=True, value=value)


def count(s: Sketch) -> list[Item]:
    """Ranges."""
    dtype, d = s.draw.choice(("int64", "int32", "float32")), s.draw
    start, step = d.integer(-4, 4), d.choice((1, 2, -1, -2))
    limit = start + step * d.integer(0, 4) + d.integer(0, 1)
    known = not d.boolean()
    return s.apply(
        "Range", [s.number(each, dtype, constant=known) for each in (start, limit, step)], exact=True
    )


def columns(s: Sketch) -> list[Item]:
    """Overlapping windows added up."""
    d = s.draw
    height, width, kernel = d.integer(3, 5), d.integer(3, 5), (2, d.integer(1, 3))
    number = (height - kernel[0] + 1) * (width - kernel[1] + 1)
    x = s.fresh(d.array((1, d.integer(1, 2) * math.prod(kernel), number), "float32"))
    return s.apply("Col2Im", [x, s.numbers(height, width), s.numbers(*kernel)], exact=True)


NODES = (
    reshape,
    flatten,
    transpose,
    squeeze,
    unsqueeze,
    expand,
    tile,
    concat,
    split,
    cut,
    pad,
    centred,
    gather,
    gather_elements,
    gather_nd,
    scatter_nd,
    scatter_elements,
    blocks,
    triangle,
    eye,
    reversed_rows,
    compress,
    nonzero,
    unique,
    one_hot,
    sizes,
    filled,
    count,
    columns,
)
