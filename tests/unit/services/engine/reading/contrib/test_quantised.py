"""Operators on integers with scales as ONNX Runtime has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.services.engine.reading.contrib.cases import (
    Array,
    Case,
    check,
    named,
    normal,
    number,
    planned,
    whole,
)

SIGNED, UNSIGNED = np.int8, np.uint8
TYPES: tuple[Any, ...] = (SIGNED, UNSIGNED)
MANY = (3, 5, 40)


def zero(type_: Any) -> Array:
    return number(7 if type_ is SIGNED else 121, type_)


def few(*shape: int, dtype: Any) -> Array:
    """Return weights of 7 bits: on some processors ONNX Runtime's sums of products of 8 overflow."""
    return whole(*shape, dtype=dtype) // 2  # type: ignore[no-any-return]


def one(operator: str, type_: Any, shape: tuple[int, ...], scale: float, result: float, **more: Any) -> Case:
    away = number(-3 if type_ is SIGNED else 100, type_)
    inputs = [whole(*shape, dtype=type_), number(scale), away, number(result), zero(type_)]
    options = {name: more.pop(name) for name in ("within", "opset", "symbolic") if name in more}
    return Case(operator, inputs, more, **({"symbolic": [0]} | options))


def two(operator: str, type_: Any, scales: tuple[float, float, float], **options: Any) -> Case:
    a, b = whole(*MANY, dtype=type_), whole(*MANY[1:], dtype=type_)
    away = number(-9 if type_ is SIGNED else 140, type_)
    inputs = [a, number(scales[0]), zero(type_), b, number(scales[1]), away, number(scales[2]), zero(type_)]
    return Case(operator, inputs, **({"symbolic": [0]} | options))


def where(type_: Any, **options: Any) -> Case:
    inputs = [
        normal(3, 5, 1) > 0,
        whole(3, 5, 40, dtype=type_),
        number(0.03),
        zero(type_),
        whole(5, 40, dtype=type_),
        number(0.02),
        number(1, type_),
        number(0.025),
        zero(type_),
    ]
    return Case("QLinearWhere", inputs, **options)


def concat(type_: Any, axis: int, **options: Any) -> Case:
    inputs = [number(0.03), zero(type_)]
    for scale, away in ((0.02, 3), (0.05, 8), (0.03, int(zero(type_)))):
        inputs += [whole(2, 3, 4, dtype=type_), number(scale), number(away, type_)]
    return Case("QLinearConcat", inputs, {"axis": axis}, **options)


def gemm(a: Any, b: Any, *more: Any, scale: Any = 0.003, alpha: float = 1.0, turned: int = 0) -> Case:
    """Return a product of types `a` and `b`, where `more` follows: addend, scale and zero point."""
    x, y = whole(6, 12, dtype=a), few(12, 5, dtype=b)
    scales = np.asarray(scale, np.float32)
    away = np.asarray(np.zeros_like(scales) + 3, b) if scales.ndim else number(3, b)
    inputs = [x.T if turned else x, number(0.02), zero(a), y.T if turned else y, scales, away, *more]
    symbolic = [0] if not turned else ()
    return Case("QGemm", inputs, {"transA": turned, "transB": turned, "alpha": alpha}, symbolic=symbolic)


def to_float(
    a: Any, b: Any, *, zeros: bool = True, bias: bool = True, dtype: Any = np.float32, **more: Any
) -> Case:
    inputs = [whole(2, 6, 12, dtype=a), few(12, 5, dtype=b), number(0.02, dtype), number(0.003, dtype)]
    inputs += [zero(a), number(3, b)] if zeros else []
    if bias:
        inputs += [normal(5, dtype=dtype)] if zeros else [None, None, normal(5, dtype=dtype)]  # type: ignore[list-item]
    return Case("MatMulIntegerToFloat", inputs, **({"symbolic": [0]} | more))


ADDEND = whole(5, dtype=np.int16).astype(np.int32)
CASES: dict[str, Case] = {}
for name, type_ in (("signed", SIGNED), ("unsigned", UNSIGNED)):
    CASES |= {
        f"add {name}": two("QLinearAdd", type_, (0.03, 0.02, 0.05), within=1),
        f"add {name} that is cut": two("QLinearAdd", type_, (0.3, 0.1, 0.05), within=1),
        f"add {name} of powers of 2": two("QLinearAdd", type_, (0.5, 0.25, 1.0)),
        f"mul {name}": two("QLinearMul", type_, (0.03, 0.02, 0.04)),
        f"mul {name} of powers of 2": two("QLinearMul", type_, (0.5, 0.25, 4.0)),
        f"sigmoid {name}": one("QLinearSigmoid", type_, MANY, 0.04, 1 / 256, within=1),
        f"leaky relu {name}": one("QLinearLeakyRelu", type_, MANY, 0.04, 0.03, alpha=0.2),
        f"softmax {name}": one("QLinearSoftmax", type_, MANY, 0.04, 1 / 256, within=1, opset=13),
        f"softmax {name} of the first axis": one(
            "QLinearSoftmax", type_, (3, 5, 4), 0.02, 1 / 256, within=1, axis=0, opset=13
        ),
        f"average pool {name}": one(
            "QLinearAveragePool",
            type_,
            (2, 3, 8, 9),
            0.04,
            0.03,
            within=1,
            kernel_shape=[3, 2],
            strides=[2, 1],
        ),
        f"average pool {name} padded": one(
            "QLinearAveragePool",
            type_,
            (2, 3, 8, 9),
            0.04,
            0.03,
            within=1,
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
        ),
        f"average pool {name} with its padding": one(
            "QLinearAveragePool",
            type_,
            (2, 3, 8, 9),
            0.04,
            0.03,
            within=1,
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            count_include_pad=1,
        ),
        f"average pool {name} of last channels": one(
            "QLinearAveragePool",
            type_,
            (2, 8, 9, 3),
            0.04,
            0.03,
            within=1,
            kernel_shape=[3, 2],
            channels_last=1,
        ),
        f"global average {name}": one("QLinearGlobalAveragePool", type_, (2, 30, 4, 5), 0.04, 0.01, within=1),
        f"global average {name} of last channels": one(
            "QLinearGlobalAveragePool", type_, (2, 4, 5, 30), 0.04, 0.01, within=1, channels_last=1
        ),
        f"concat {name}": concat(type_, 1, symbolic=[2, 5, 8]),
        f"concat {name} of the last axis": concat(type_, -1),
        f"where {name}": where(type_, symbolic=[0, 1]),
        f"quantise {name}": Case("QuantizeLinear", [normal(*MANY), number(0.02), zero(type_)], symbolic=[0]),
        f"dequantise {name}": Case(
            "DequantizeLinear", [whole(*MANY, dtype=type_), number(0.02), zero(type_)], symbolic=[0]
        ),
    }
CASES |= {
    "sigmoid without zero points": Case(
        "QLinearSigmoid", [whole(9), number(0.05), None, number(1 / 256), None], within=1
    ),
    "softmax of several axes at once": one(
        "QLinearSoftmax", UNSIGNED, (3, 5, 4), 0.02, 1 / 256, within=1, axis=1, opset=12
    ),
    "softmax in steps of 1 / 255": one("QLinearSoftmax", UNSIGNED, MANY, 0.02, 1 / 255, within=1, opset=13),
    "softmax in an old opset": one("QLinearSoftmax", UNSIGNED, MANY, 0.02, 1 / 256, within=1, opset=11),
    "quantise in columns": Case(
        "QuantizeLinear", [normal(4, 6), np.abs(normal(6)) + 0.1, whole(6)], {"axis": 1}
    ),
    "quantise in rows": Case(
        "QuantizeLinear", [normal(4, 6), np.abs(normal(4)) + 0.1, whole(4)], {"axis": 0}
    ),
    "quantise halves": Case(
        "QuantizeLinear", [normal(4, 6, dtype=np.float16), number(0.5, np.float16), zero(SIGNED)]
    ),
    "quantise into 16 bits": Case("QuantizeLinear", [normal(4, 6), number(0.0005), number(300, np.uint16)]),
    "quantise in an old opset": Case("QuantizeLinear", [normal(4, 6), number(0.02), zero(SIGNED)], opset=10),
    "dequantise in columns": Case(
        "DequantizeLinear", [whole(4, 6), np.abs(normal(6)) + 0.1, whole(6)], {"axis": 1}
    ),
    "dequantise to halves": Case("DequantizeLinear", [whole(4, 6), number(0.5, np.float16)]),
    "dequantise 32 bits": Case("DequantizeLinear", [whole(9, dtype=np.int32), number(0.001)]),
    "gemm to floats": gemm(UNSIGNED, SIGNED),
    "gemm with an addend": gemm(UNSIGNED, SIGNED, ADDEND, alpha=0.5),
    "gemm quantised": gemm(UNSIGNED, SIGNED, ADDEND, number(0.05), zero(UNSIGNED)),
    "gemm quantised, turned": gemm(UNSIGNED, SIGNED, ADDEND, number(0.05), zero(UNSIGNED), turned=1),
    "gemm signed": gemm(SIGNED, SIGNED, None, number(0.05), zero(SIGNED)),
    "gemm in columns": gemm(
        UNSIGNED, SIGNED, ADDEND, number(0.05), zero(UNSIGNED), scale=[0.1, 0.2, 0.3, 0.1, 0.2]
    ),
    "gemm in columns, to floats": gemm(UNSIGNED, UNSIGNED, scale=[0.1, 0.2, 0.3, 0.1, 0.2]),
    "to float": to_float(UNSIGNED, SIGNED),
    "to float of one type": to_float(SIGNED, SIGNED, bias=False),
    "to float without zero points": to_float(UNSIGNED, UNSIGNED, zeros=False, opset=10),
    "to float in columns": Case(
        "MatMulIntegerToFloat",
        [whole(6, 12), whole(12, 5), number(0.02), np.abs(normal(5)), zero(UNSIGNED), whole(5)],
    ),
    "dynamic": Case("DynamicQuantizeMatMul", [normal(2, 6, 12), few(12, 5, dtype=SIGNED), number(0.02)]),
    "dynamic of any size": Case(
        "DynamicQuantizeMatMul",
        [normal(2, 6, 12), whole(12, 5), np.abs(normal(5)), whole(5), normal(5)],
        symbolic=[0],
    ),
    "dynamic with one zero point": Case(
        "DynamicQuantizeMatMul",
        [normal(6, 12), whole(12, 5), number(0.02), zero(UNSIGNED), normal(5)],
        opset=11,
    ),
}
for case in CASES.values():
    if case.operator == "QLinearSoftmax":
        case.attributes["opset"] = case.opset  # type: ignore[index]


def test_zero_points_that_are_left_out_are_zero() -> None:
    # ONNX Runtime's own inference fails on them.
    for operator in ("QLinearAdd", "QLinearMul"):
        for type_ in TYPES:
            a, b, none = whole(9, dtype=type_), whole(9, dtype=type_), number(0, type_)
            scales = number(0.5), number(0.25), number(2)
            case = Case(operator, [a, scales[0], none, b, scales[1], none, scales[2], none])
            bare = Case(operator, [a, scales[0], None, b, scales[1], None, scales[2]])
            check(case)
            results = [planned(each.model(), each.feed())["y0"] for each in (case, bare)]
            np.testing.assert_array_equal(*results)


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
