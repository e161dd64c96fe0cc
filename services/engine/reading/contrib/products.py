"""Products of matrices and convolutions with what an optimiser drew into them."""

from __future__ import annotations

from services.engine.reading.contrib.definition import Definition
from services.engine.reading.contrib.operator import FLOAT, FLOATS, INTS, STRING, Contrib

_TURNS = {"transA": 0, "transB": 0, "alpha": 1.0}
_AFTER_GEMM = {
    "Celu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""Activations with the attributes that they have."""
_AFTER_CONV = {
    "Clip": ("low", "high"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
_WINDOWS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _turned(d: Definition, index: int, letter: str) -> str:
    """Return a factor with its axes in the order of a product."""
    x = d.input(index)
    last, batch = d.integer(f"trans{letter}"), d.integer(f"transBatch{letter}")
    if not last and not batch:
        return x
    rank = d.rank(x)
    if rank < 2 and not batch:
        return x
    order = list(range(rank))
    if batch:
        if rank < 3:
            d.fail(f"attribute 'transBatch{letter}' moves the first of at least 3 axes; its input has {rank}")
        order = [*order[1:-1], 0, rank - 1]
    if last:
        order[-2:] = order[:-3:-1]
    return d.transpose(x, *order)


def _scaled(d: Definition, x: str) -> str:
    alpha = d.number("alpha")
    return x if alpha == 1 else d("Mul", x, d.scalar(alpha, x))


def _matmul(d: Definition) -> tuple[str]:
    return (_scaled(d, d("MatMul", _turned(d, 0, "A"), _turned(d, 1, "B"))),)


def _gemm(d: Definition) -> tuple[str]:
    activation = d.text("activation", tuple(_AFTER_GEMM))
    # Before opset 11 the addend is no optional one.
    addend = d.optional(2)
    if addend is None and d.opset < 11:
        addend = d.scalar(0, d.input(0))
    inputs = [d.input(0), d.input(1), *([] if addend is None else [addend])]
    result = d("Gemm", *inputs, **d.given("transA", "transB", "alpha", "beta"))
    if not activation:
        return (result,)
    more = {
        name: d.number(f"activation_{name}")
        for name in _AFTER_GEMM[activation]
        if d.has(f"activation_{name}")
    }
    return (d(activation, result, **more),)


def _convolution(d: Definition) -> tuple[str]:
    activation = d.text("activation", tuple(_AFTER_CONV))
    result = d.sum(d("Conv", *map(d.optional, range(3)), **d.given(*_WINDOWS)), d.optional(3))
    if not activation:
        return (result,)
    names, given = _AFTER_CONV[activation], d.numbers("activation_params")
    if len(given) != len(names):
        d.fail(f"attribute 'activation_params' has {len(given)} numbers; {activation} takes {len(names)}")
    if activation == "Clip":
        low, high = (d.scalar(end, result) for end in given)
        return (d("Min", d("Max", result, low), high),)
    return (d(activation, result, **dict(zip(names, given, strict=True))),)


OPERATORS = (
    Contrib(
        "FusedConv",
        "x w b? z?",
        "y",
        _convolution,
        attributes={
            "activation": STRING,
            "activation_params": FLOATS,
            "auto_pad": "NOTSET",
            "dilations": INTS,
            "group": 1,
            "kernel_shape": INTS,
            "pads": INTS,
            "strides": INTS,
        },
        limits="activations beside " + ", ".join(_AFTER_CONV),
    ),
    Contrib(
        "FusedGemm",
        "a b c?",
        "y",
        _gemm,
        attributes={
            "activation": STRING,
            "activation_alpha": FLOAT,
            "activation_beta": FLOAT,
            "activation_gamma": FLOAT,
            "alpha": 1.0,
            "beta": 1.0,
            "transA": 0,
            "transB": 0,
        },
        required=("activation",),
        limits="activations beside " + ", ".join(_AFTER_GEMM),
    ),
    Contrib("FusedMatMul", "a b", "y", _matmul, attributes={**_TURNS, "transBatchA": 0, "transBatchB": 0}),
    Contrib("TransposeMatMul", "a b", "y", _matmul, attributes=_TURNS),
)
