"""What comes before a detector's model, and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.backend import Value, int_or_none
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    MOST_SIDE,
    channels_of,
    check_type,
    chosen,
    colour,
    constant,
    describe,
    flag,
    height_width,
    image,
    listed,
    maximum,
    minimum,
    pair,
    part,
    picked,
    planes,
    read,
    real,
    reduced,
    stacked,
    take,
    transposed,
    where,
    whole,
)
from libs.compute.image.resizing import scaled
from libs.compute.tensor import Tensor, tensors_of

__all__ = ["NMSBoxes", "blobFromImage", "blobFromImages"]

_TYPES = ("uint8", "float32")
_MOST_IMAGES = 1024


def blobFromImage(
    image: Any,
    scalefactor: float = 1.0,
    size: tuple[int, ...] = (),
    mean: Any = (),
    swapRB: bool = False,
    crop: bool = False,
    ddepth: int = c.CV_32F,
) -> Tensor:
    """Return scalefactor·(image - mean) as a model takes it, [1, channels, height, width].

    size: (width, height) to resize to by INTER_LINEAR; crop: the shorter side fits, the middle is taken.
    mean: one number for each channel of the result. swapRB: the first and last channel change places.
    ddepth: CV_32F, or CV_8U without mean and scale.

    OpenCV: 1e-5.
    """
    return _blob("blobFromImage", {"image": image}, scalefactor, size, mean, swapRB, crop, ddepth)


def blobFromImages(
    images: Any,
    scalefactor: float = 1.0,
    size: tuple[int, ...] = (),
    mean: Any = (),
    swapRB: bool = False,
    crop: bool = False,
    ddepth: int = c.CV_32F,
) -> Tensor:
    """Return `blobFromImage` of several images, [images, channels, height, width].

    OpenCV: 1e-5.
    """
    call = "blobFromImages"
    several = listed(call, "images", images)
    if not 0 < len(several) <= _MOST_IMAGES:
        raise Invalid(f"{call}: images has {len(several)} images; it has 1 to {_MOST_IMAGES}")
    named = {f"images[{place}]": each for place, each in enumerate(several)}
    return _blob(call, named, scalefactor, size, mean, swapRB, crop, ddepth)


def _blob(
    call: str,
    images: Mapping[str, Any],
    scalefactor: Any,
    size: Any,
    mean: Any,
    swapRB: Any,
    crop: Any,
    ddepth: Any,
) -> Tensor:
    wanted = pair(call, "size", size if listed(call, "size", size) else (0, 0), 0, MOST_SIDE)
    swap, cut = flag(call, "swapRB", swapRB), flag(call, "crop", crop)
    scale = real(call, "scalefactor", scalefactor)
    result = chosen(call, "ddepth", ddepth, (c.CV_8U, c.CV_32F))
    made = []
    for name, each in images.items():
        tensor = image(call, name, each, _TYPES, (1, 3, 4))
        if 0 not in wanted:
            tensor = _fitted(call, tensor, wanted, cut)
        x = planes(tensor)
        channels = channels_of(x)
        if swap and channels > 2:
            x = picked(x, [2, 1, 0, *range(3, channels)], 2)
        means = colour(call, "mean", tuple(mean) if isinstance(mean, (tuple, list)) else mean, channels)
        if result == c.CV_8U:
            if any(means) or scale != 1 or x.dtype != "uint8":
                raise Invalid(f"{call}: ddepth CV_8U takes uint8 images, no mean and a scalefactor of 1")
        else:
            x = (x.astype("float32") - constant(x, np.array(means), "float32")) * scale
        made.append(transposed(x, (2, 0, 1)))
    made = tensors_of(*made)
    for each in made:
        if tuple(each.shape) != tuple(made[0].shape):
            raise Invalid(f"{call}: images differ in size or channels; give a size, and images of one kind")
    return stacked(made, 0)


def _fitted(call: str, tensor: Tensor, size: tuple[int, int], crop: bool) -> Tensor:
    height, width = height_width(tensor)
    if (width, height) == size:
        return tensor
    if not crop:
        return scaled(call, tensor, size, 0, 0, c.INTER_LINEAR)
    factor = max(size[0] / width, size[1] / height)
    if max(width, height) * factor > MOST_SIDE:
        raise Invalid(f"{call}: size is {size!r}: {describe(tensor)} would be too long before it is cut")
    large = scaled(call, tensor, None, factor, factor, c.INTER_LINEAR)
    height, width = height_width(large)
    left, top = int(0.5 * (width - size[0])), int(0.5 * (height - size[1]))
    x = planes(large)
    taken = part(x, (top, left, 0), (size[1], size[0], channels_of(x)))
    return taken if large.ndim == 3 else taken.reshape((size[1], size[0]))


def NMSBoxes(
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_threshold: float,
    eta: float = 1.0,
    top_k: int = 0,
) -> Tensor:
    """Return which boxes to keep, int32, the best first: none that overlaps a better one too much.

    Args:
        bboxes: [n, 4] of x, y, width and height.
        scores: [n].
        score_threshold: boxes that score no more are left out.
        nms_threshold: how much of what two boxes cover both may cover, 0 to 1.
        eta: below 1, the threshold is multiplied by it after each box that is kept, while above 0.5.
        top_k: how many of the best are looked at; 0: all.

    OpenCV: exact.
    """
    call = "NMSBoxes"
    boxes, values = tensors_of(read(call, "bboxes", bboxes), read(call, "scores", scores))
    for name, tensor in (("bboxes", boxes), ("scores", values)):
        check_type(call, name, tensor, ("int32", "int64", "float32", "float64"))
    if int_or_none(values.size) == 0 and int_or_none(boxes.size) == 0:
        return constant(values, np.zeros(0), "int32")
    if boxes.ndim != 2 or int_or_none(boxes.shape[1]) != 4 or values.ndim != 1:
        texts = f"bboxes is {describe(boxes)} and scores {describe(values)}"
        raise Invalid(f"{call}: {texts}; they are [n, 4] and [n]")
    limit, overlap = (
        real(call, "score_threshold", score_threshold),
        real(call, "nms_threshold", nms_threshold),
    )
    factor = real(call, "eta", eta)
    most = whole(call, "top_k", top_k, -(1 << 31), (1 << 31) - 1)
    b, count = boxes.backend, values.shape[0]
    try:
        b.equal(boxes.shape[0], count)
    except Invalid as error:
        raise Invalid(f"{call}: bboxes is {describe(boxes)} and scores {describe(values)}: {error}") from None
    values = values.astype("float32")
    order = Tensor(b, b.arg_sort((-values).value, 0))
    boxes, values = take(boxes.astype("float64"), order, 0), take(values, order, 0)
    rank = Tensor(b, b.arange(count))
    looked_at = values > limit
    if most > 0:
        looked_at = looked_at & (rank < most)
    none_yet = Tensor(b, b.broadcast(constant(rank, 0, "bool").value, (count,)))

    def body(number: Value, carried: list[Value]) -> tuple[None, list[Value]]:
        at = Tensor(b, number)
        kept, threshold = Tensor(b, carried[0]), Tensor(b, carried[1])
        shared = _overlaps(boxes, take(boxes, at, 0))
        beaten = reduced("reduce_max", (kept & (shared > threshold)).astype("uint8"), (0,)) > 0
        stays = take(looked_at, at, 0) & ~beaten
        after = where(rank == at, stays, kept)
        if factor < 1:
            threshold = where(stays & (threshold > 0.5), threshold * factor, threshold)
        return None, [after.value, threshold.value]

    start = constant(values, overlap)
    found, _ = b.loop(count, [none_yet.value, start.value], body)
    kept = Tensor(b, found)
    total = b.size(reduced("reduce_sum", kept.astype("int64"), (0,)).value)
    first = Tensor(b, b.arg_sort((~kept).astype("uint8").value, 0))
    chosen_ = Tensor(b, b.move(first.value, (total,), (1,), 0))
    return take(order, chosen_, 0).astype("int32")


def _overlaps(boxes: Tensor, box: Tensor) -> Tensor:
    """Return the intersection of a box with each other one over their union, float32; 1 of two empty ones."""
    edges = []
    for axis in (0, 1):
        low = maximum(boxes[:, axis], box[axis])
        high = minimum(boxes[:, axis] + boxes[:, axis + 2], box[axis] + box[axis + 2])
        size = high - low
        edges.append(maximum(size, constant(size, 0)))
    both = edges[0] * edges[1]
    areas, area = boxes[:, 2] * boxes[:, 3], box[2] * box[3]
    union = areas + area - both
    empty = areas + area <= float(np.finfo(np.float64).eps)
    safe = where(empty | (union == 0), constant(union, 1), union)
    share = 1.0 - (1.0 - both / safe)
    return where(empty, constant(share, 1), share).astype("float32")
