"""Random nodes that quantise, judge, transform signals and choose boxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from services.engine.testing_graphs.elementwise import axis_of
from services.engine.testing_graphs.sketch import Item, Sketch


def quantised(s: Sketch) -> list[Item]:
    """To whole numbers and back."""
    d = s.draw
    x = s.pick(("float32",), 1, exact=True)
    dtype = d.choice(("uint8", "int8"))
    axis = axis_of(s, x.rank)
    sizes = (x.shape[axis],) if d.boolean() else ()
    scale = s.fresh(np.asarray(np.exp2(d.array(sizes, "float32", -2, 1).round()), np.float32))
    zero = s.fresh(d.array(sizes, dtype))
    made = s.apply("QuantizeLinear", [x, scale, zero], exact=True, axis=axis)
    return (
        s.apply("DequantizeLinear", [*made, scale, zero], exact=True, axis=axis)
        if made and d.boolean()
        else made
    )


def integer_products(s: Sketch) -> list[Item]:
    """Products and convolutions of whole numbers."""
    d = s.draw
    if d.boolean():
        a = s.fresh(d.array((d.integer(1, 3), 3), d.choice(("uint8", "int8")), -9, 9))
        b = s.fresh(d.array((3, d.integer(1, 3)), d.choice(("uint8", "int8")), -9, 9))
        zeros = [s.fresh(d.array((), each.dtype)) if d.boolean() else None for each in (a, b)]
        return s.apply("MatMulInteger", [a, b, *zeros], exact=True)
    x = s.fresh(d.array((1, 2, 4, 4), "uint8", 0, 9))
    w = s.fresh(d.array((2, 2, 2, 2), d.choice(("uint8", "int8")), -9, 9))
    return s.apply("ConvInteger", [x, w, s.fresh(d.array((), "uint8"))], exact=True, pads=d.integers(4, 0, 1))


def loss(s: Sketch) -> list[Item]:
    """Losses of classes."""
    d = s.draw
    x = s.pick(("float32",), 2, 4)
    labels = s.fresh(d.array((x.shape[0], *x.shape[2:]), d.choice(("int64", "int32")), 0, x.shape[1] - 1))
    weights = s.like(x, (x.shape[1],), 1, 3) if d.boolean() else None
    how: dict[str, Any] = {"reduction": d.choice(("none", "mean", "sum"))}
    if d.chance(3) and x.shape[1] > 1:
        how["ignore_index"] = 0
    if d.boolean():
        return s.apply("NegativeLogLikelihoodLoss", [x, labels, weights], **how)
    return s.apply("SoftmaxCrossEntropyLoss", [x, labels, weights], **how)


def signal(s: Sketch) -> list[Item]:
    """Windows and transforms."""
    d = s.draw
    if d.boolean():
        operator = d.choice(("HannWindow", "HammingWindow", "BlackmanWindow"))
        return s.apply(operator, [s.number(d.integer(2, 8))], periodic=d.integer(0, 1))
    x = s.fresh(d.array((d.integer(1, 2), d.integer(2, 6), d.integer(1, 2)), "float32"))
    if s.opset < 20:
        return []
    complex_, inverse = x.shape[-1] == 2, d.boolean()
    length = s.number(d.integer(2, 7)) if d.chance(3) else None
    onesided = int(not complex_ and not inverse and d.boolean())
    if inverse and not complex_:
        return []
    return s.apply("DFT", [x, length, s.number(1)], inverse=int(inverse), onesided=onesided)


def determinant(s: Sketch) -> list[Item]:
    """Find determinants."""
    size = s.draw.integer(1, 3)
    return s.apply("Det", [s.fresh(s.draw.array((*s.draw.shape(0, 2, 2), size, size), "float32"))])


def suppression(s: Sketch) -> list[Item]:
    """Boxes that overlap less."""
    d = s.draw
    boxes = d.array((1, d.integer(1, 5), 4), "float32", 0, 4)
    boxes[..., 2:] += boxes[..., :2] + 1
    number = math.prod(boxes.shape[:2])
    scores = np.random.default_rng(d.integer(0, 99)).permutation(2 * number).reshape(1, 2, number) / 16
    limits = [
        s.number(d.integer(0, 3)),
        s.number(d.choice((0.5, 0.25)), "float32"),
        s.number(d.integer(0, 2) / 4, "float32"),
    ]
    return s.apply(
        "NonMaxSuppression",
        [s.fresh(boxes), s.fresh(scores.astype(np.float32)), *limits],
        exact=True,
        center_point_box=d.integer(0, 1),
    )


NODES = (quantised, integer_products, loss, signal, determinant, suppression)
