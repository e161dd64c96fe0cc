"""Random nodes of neural networks: products, convolutions, pools, norms, recurrence, attention, samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.testing_graphs.elementwise import axis_of
from services.engine.testing_graphs.sketch import Item, Sketch

_FLOATS = ("float32", "float32", "float64")


def matmul(s: Sketch) -> list[Item]:
    """Matrices, stacks of them, vectors."""
    x, d = s.pick((*_FLOATS, "int32", "int64"), 1, 4), s.draw
    depth = x.shape[-1]
    if d.chance(4):
        return s.apply("MatMul", [x, s.like(x, (depth,))], exact=True)
    stack = x.shape[:-2] if d.boolean() else ()
    stack = tuple(1 if d.chance(4) else size for size in stack)
    y = s.like(x, (*stack, depth, d.integer(1, 4)))
    return s.apply("MatMul", [x, y], exact=True)


def gemm(s: Sketch) -> list[Item]:
    """Matrices with a bias."""
    d = s.draw
    a = s.pick(_FLOATS, 2, 2)
    flip_a, flip_b = d.integer(0, 1), d.integer(0, 1)
    rows, depth = (a.shape[1], a.shape[0]) if flip_a else a.shape
    width = d.integer(1, 4)
    b = s.like(a, (width, depth) if flip_b else (depth, width))
    c = s.like(a, d.choice(((), (1,), (width,), (rows, 1), (rows, width)))) if d.boolean() else None
    return s.apply(
        "Gemm", [a, b, c], transA=flip_a, transB=flip_b, alpha=d.choice((1.0, 0.5)), beta=d.choice((1.0, 2.0))
    )


def einsum(s: Sketch) -> list[Item]:
    """Add up over letters."""
    d = s.draw
    sizes = dict(zip("abcd", d.integers(4, 1, 3), strict=True))
    terms = ["".join(d.some("abcd", 1))[: d.integer(1, 3)] for _ in range(d.integer(1, 3))]
    letters = sorted(set("".join(terms)))
    out = "".join(d.some(letters, 0))
    arrays = [s.fresh(d.array([sizes[each] for each in term], "float32")) for term in terms]
    return s.apply("Einsum", arrays, exact=True, equation=f"{','.join(terms)}->{out}")


def _windows(s: Sketch, inner: tuple[int, ...], kernel: tuple[int, ...], pool: bool) -> dict[str, Any]:
    """Return strides, dilations and pads by which each window fits at least once."""
    d = s.draw
    mode = d.choice(("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    how: dict[str, Any] = {}
    if d.boolean():
        # Of windows that leave gaps, nobody knows where those of the same size begin.
        how["strides"] = d.integers(len(inner), 1, min(kernel) if mode[0] == "S" else 3)
    dilations = [1] * len(inner)
    if d.chance(3) and not (pool and mode[0] == "S"):  # of pools, everybody makes something else of both
        dilations = [
            d.integer(1, 2) if (size - 1) * 2 < whole else 1
            for size, whole in zip(kernel, inner, strict=True)
        ]
        how["dilations"] = dilations
    if mode == "NOTSET":
        most = [(size - 1) * gap if pool else 2 for size, gap in zip(kernel, dilations, strict=True)]
        how["pads"] = [d.integer(0, min(each, 2)) for each in most * 2]
    else:
        how["auto_pad"] = mode
    return how


def _image(s: Sketch, channels: int = 0) -> Item:
    """Return [batch, channels, …] with one to three further axes."""
    d = s.draw
    if not channels:
        channels = d.integer(1, 4)
    inner = d.integers(d.choice((2, 1, 2, 3)), 3, 6)
    return s.pick(
        _FLOATS,
        3,
        5,
        where=lambda item: min(item.shape[2:]) >= 3 and item.shape[1] == channels,
        new=lambda: d.array((d.integer(1, 2), channels, *inner), d.choice(_FLOATS)),
    )


def conv(s: Sketch) -> list[Item]:
    """Convolutions."""
    d, x = s.draw, _image(s)
    inner = x.shape[2:]
    groups = d.choice([each for each in range(1, x.shape[1] + 1) if x.shape[1] % each == 0])
    kernel = tuple(d.integer(1, min(3, size)) for size in inner)
    out = groups * d.integer(1, 2)
    w = s.fresh(d.array((out, x.shape[1] // groups, *kernel), x.dtype, -2, 2))
    bias = s.like(x, (out,)) if d.boolean() else None
    return s.apply("Conv", [x, w, bias], exact=True, group=groups, **_windows(s, inner, kernel, False))


def conv_transpose(s: Sketch) -> list[Item]:
    """Transposed convolutions."""
    d, x = s.draw, _image(s)
    inner = x.shape[2:]
    groups = d.choice([each for each in range(1, x.shape[1] + 1) if x.shape[1] % each == 0])
    kernel = [d.integer(1, 3) for _ in inner]
    out = d.integer(1, 2)
    w = s.fresh(d.array((x.shape[1], out, *kernel), x.dtype, -2, 2))
    how: dict[str, Any] = {"group": groups}
    strides = d.integers(len(inner), 1, 3)
    how["strides"] = strides
    if d.chance(3):
        how["output_padding"] = [d.integer(0, stride - 1) for stride in strides]
    if d.boolean():
        how["pads"] = [d.integer(0, (size - 1) // 2) for size in (*kernel, *kernel)]
    # With several groups, the evaluator adds the bias of the first to all.
    bias = s.like(x, (out * groups,)) if d.boolean() and groups == 1 else None
    return s.apply("ConvTranspose", [x, w, bias], exact=True, **how)


def pool(s: Sketch) -> list[Item]:
    """Pools."""
    d, x = s.draw, _image(s)
    inner = x.shape[2:]
    kernel = tuple(d.integer(1, min(3, size)) for size in inner)
    how = {"kernel_shape": kernel, **_windows(s, inner, kernel, True)}
    operator = d.choice(("MaxPool", "AveragePool", "LpPool"))
    if "auto_pad" not in how and d.chance(3):
        how["ceil_mode"] = 1
    if operator == "AveragePool":
        how["count_include_pad"] = d.integer(0, 1)
    if operator == "LpPool" and x.dtype != "float32":
        return []  # the evaluator is wrong at the ends; ONNX Runtime only takes this type
    if operator == "LpPool":
        how["p"] = d.integer(1, 3)
    return s.apply(operator, [x], exact=operator == "MaxPool", **how)


def global_pool(s: Sketch) -> list[Item]:
    """Pools of all there is."""
    # Of other numbers of axes, the evaluator gives a wrong shape.
    x = _image(s)
    return s.apply(s.draw.choice(("GlobalAveragePool", "GlobalMaxPool")), [x]) if x.rank == 4 else []


def norm(s: Sketch) -> list[Item]:
    """Normalisation."""
    d = s.draw
    kinds = ["BatchNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LpNormalization"]
    kinds += ["MeanVarianceNormalization", *(["GroupNormalization"] if s.opset >= 21 else [])]
    kinds += ["RMSNormalization"] if s.opset >= 23 else []
    operator = d.choice(kinds)
    if operator in ("LayerNormalization", "RMSNormalization"):
        x = s.pick(("float32",), 1)
        axis = axis_of(s, x.rank)
        kept = x.shape[axis:]
        bias = [s.like(x, kept)] if operator[0] == "L" and d.boolean() else []
        return s.apply(operator, [x, s.like(x, kept), *bias], axis=axis, epsilon=0.25)
    if operator == "LpNormalization":
        x = s.pick(("float32",), 1)
        return s.apply(operator, [x], axis=axis_of(s, x.rank), p=d.integer(1, 2))
    x = _image(s)
    if operator == "MeanVarianceNormalization":
        return s.apply(operator, [x], axes=d.some(range(x.rank))) if x.value.size > 8 else []
    if operator == "LRN":  # the evaluator is wrong about it; ONNX Runtime only takes this type
        if x.dtype != "float32" or x.rank != 4:
            return []
        return s.apply(operator, [x], size=d.choice((3, 5)), alpha=0.5, bias=1.0)
    channels = x.shape[1]
    scale, bias_ = (s.like(x, (channels,)) for _ in range(2))
    if operator == "GroupNormalization":
        groups = d.choice([each for each in range(1, channels + 1) if channels % each == 0])
        return s.apply(operator, [x, scale, bias_], num_groups=groups, epsilon=0.25)
    if operator == "InstanceNormalization":
        return s.apply(operator, [x, scale, bias_], epsilon=0.25)
    mean, variance = s.like(x, (channels,)), s.like(x, (channels,), 1, 4)
    return s.apply(operator, [x, scale, bias_, mean, variance], epsilon=0.25)


def resize(s: Sketch) -> list[Item]:
    """Other sizes of images: to scales or sizes, of every mode."""
    d = s.draw
    x = s.fresh(d.array((1, d.integer(1, 2), *d.integers(2, 2, 5)), "float32"))
    mode = d.choice(("nearest", "linear", "cubic"))
    coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.choice(coordinates)}
    if mode == "nearest":
        how["nearest_mode"] = d.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        how |= {"cubic_coeff_a": d.choice((-0.75, -0.5)), "exclude_outside": d.integer(0, 1)}
    elif mode == "linear" and d.chance(3):
        how["antialias"] = 1
    known = not d.chance(3)
    if mode != "nearest" and d.boolean():
        # To a size of 1, the evaluator isn't as the specification for some coordinates.
        sizes = s.numbers(*x.shape[:2], *d.integers(2, 2, 7), constant=known)
        return s.apply("Resize", [x, None, None, sizes], **how)
    # Nearest of two that are equally near is a matter of rounding, but for powers of two.
    choices = (2.0, 0.5, 1.0, 4.0) if mode == "nearest" else (2.0, 0.5, 1.5, 3.0, 1.0, 0.75)
    scales = np.array([1, 1, *(d.choice(choices) for _ in range(2))], np.float32)
    return s.apply("Resize", [x, None, s.fresh(scales, constant=known, fixed=True)], **how)


def sample(s: Sketch) -> list[Item]:
    """Take samples of images at a grid."""
    d = s.draw
    inner = d.integers(d.choice((2, 2, 3)), 2, 4)
    x = s.fresh(d.array((d.integer(1, 2), d.integer(1, 2), *inner), "float32"))
    grid = d.array((x.shape[0], *d.integers(len(inner), 1, 3), len(inner)), "float32", -2, 2) * np.float32(
        0.55
    )
    how: dict[str, Any] = {
        "align_corners": d.integer(0, 1),
        "padding_mode": d.choice(("zeros", "border", "reflection")),
    }
    modes = ("linear", "nearest", "cubic") if s.opset >= 20 else ("bilinear", "nearest", "bicubic")
    mode = d.choice(modes[: 3 if len(inner) == 2 else 2])
    return s.apply("GridSample", [x, s.fresh(np.asarray(grid, np.float32))], mode=mode, **how)


def regions(s: Sketch) -> list[Item]:
    """Pools of regions."""
    d = s.draw
    x = s.fresh(d.array((2, d.integer(1, 2), 5, 6), "float32"))
    corners = d.array((3, 4), "float32", 0, 4)
    corners[:, 2:] += corners[:, :2] + 1
    batch = s.fresh(d.array((3,), "int64", 0, 1))
    return s.apply(
        "RoiAlign",
        [x, s.fresh(corners), batch],
        mode=d.choice(("avg", "max")),
        output_height=d.integer(1, 3),
        output_width=d.integer(1, 3),
        sampling_ratio=d.integer(0, 2),
        spatial_scale=d.choice((1.0, 0.5)),
        coordinate_transformation_mode=d.choice(("half_pixel", "output_half_pixel")),
    )


def recurrent(s: Sketch) -> list[Item]:
    """RNN, GRU, LSTM, in either or both directions, with what is optional there or not."""
    d = s.draw
    operator = d.choice(("RNN", "GRU", "LSTM"))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    length, batch, width, hidden = d.integers(4, 1, 3)
    direction = d.choice(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1

    def array(*shape: int) -> Item:
        return s.fresh(np.asarray(d.array(shape, "float32") / np.float32(4)))

    inputs = [
        array(length, batch, width),
        array(ways, gates * hidden, width),
        array(ways, gates * hidden, hidden),
        array(ways, 2 * gates * hidden) if d.boolean() else None,
        None,
        array(ways, batch, hidden) if d.boolean() else None,
    ]
    how: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if operator == "GRU":
        how["linear_before_reset"] = d.integer(0, 1)
    if operator == "LSTM":
        inputs += [
            array(ways, batch, hidden) if d.boolean() else None,
            array(ways, 3 * hidden) if d.boolean() else None,
        ]
    return s.apply(operator, inputs, 3 if operator == "LSTM" else 2, **how)


def attention(s: Sketch) -> list[Item]:
    """Attention, with heads that share keys, masks and caps."""
    if s.opset < 23:
        return []
    d = s.draw
    batch, queries, keys, size = d.integers(4, 1, 3)
    shared = d.integer(1, 2)
    heads = shared * d.integer(1, 2)

    def array(*shape: int) -> Item:
        return s.fresh(np.asarray(d.array(shape, "float32") / np.float32(4)))

    mask = None
    if d.boolean():
        mask = s.fresh(d.array((queries, keys), d.choice(("float32", "bool"))))
        if mask.dtype == "bool":
            mask.value[:, 0] = True
    how: dict[str, Any] = {
        "softcap": d.choice((0.0, 2.0)),
        "is_causal": d.integer(0, 1) if mask is None else 0,
    }
    if d.boolean():
        how["scale"] = 0.5
    shapes = ((heads, queries), (shared, keys), (shared, keys))
    if d.boolean():
        how |= {"q_num_heads": heads, "kv_num_heads": shared}
        return s.apply("Attention", [*(array(batch, n, h * size) for h, n in shapes), mask], **how)
    return s.apply("Attention", [*(array(batch, h, n, size) for h, n in shapes), mask], **how)


def rotary(s: Sketch) -> list[Item]:
    """Rotary embedding."""
    if s.opset < 23:
        return []
    d = s.draw
    batch, heads, length = d.integers(3, 1, 3)
    size = 2 * d.integer(1, 3)
    x = s.fresh(d.array((batch, heads, length, size), "float32"))
    tables = [s.fresh(d.array((4, size // 2), "float32")) for _ in range(2)]
    places = s.fresh(d.array((batch, length), "int64", 0, 3))
    return s.apply("RotaryEmbedding", [x, *tables, places], interleaved=d.integer(0, 1))


NODES = (
    matmul,
    gemm,
    einsum,
    conv,
    conv_transpose,
    pool,
    global_pool,
    norm,
    resize,
    sample,
    regions,
    recurrent,
    attention,
    rotary,
)
