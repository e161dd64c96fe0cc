"""Products as ONNX Runtime has them."""

from __future__ import annotations

from typing import Any

from tests.unit.services.engine.reading.contrib.cases import Case, check, named, normal

A, B = normal(2, 3, 4), normal(2, 4, 5)
TURNED_A, TURNED_B = normal(2, 4, 3), normal(2, 5, 4)
IMAGE, KERNEL = normal(2, 3, 6, 5), normal(4, 3, 3, 3)
GEMM = [normal(3, 4), normal(4, 5), normal(5)]


def conv(*more: Any, symbolic: Any = False, **attributes: Any) -> Case:
    return Case("FusedConv", [IMAGE, KERNEL, *more], attributes, symbolic=symbolic)


def gemm(activation: str, **attributes: Any) -> Case:
    return Case("FusedGemm", GEMM, {"activation": activation, **attributes}, symbolic=[0])


CASES = {
    "matmul": Case("FusedMatMul", [A, B], {"alpha": 0.25}),
    "matmul turned": Case("FusedMatMul", [TURNED_A, TURNED_B], {"transA": 1, "transB": 1}),
    "matmul of any size": Case("FusedMatMul", [A, TURNED_B], {"transB": 1, "alpha": 2.0}, symbolic=[0, 1]),
    "matmul of doubles": Case("FusedMatMul", [A.astype(float), B.astype(float)], {"alpha": 0.5}),
    "matmul with a vector": Case("FusedMatMul", [normal(4), normal(4, 3)], {"alpha": 0.5}),
    "matmul of batches in the middle": Case(
        "FusedMatMul", [normal(3, 2, 4), normal(4, 2, 5)], {"transBatchA": 1, "transBatchB": 1}
    ),
    "matmul of all turned": Case(
        "FusedMatMul",
        [normal(4, 2, 7, 3), normal(5, 2, 7, 4)],
        {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1},
    ),
    "transpose matmul": Case("TransposeMatMul", [TURNED_A, B], {"transA": 1, "alpha": 0.5}, opset=7),
    "gemm": Case("FusedGemm", GEMM, {"alpha": 0.5, "beta": 2.0, "activation": "Relu"}, opset=7),
    "gemm turned": Case(
        "FusedGemm", [normal(4, 3), normal(5, 4)], {"transA": 1, "transB": 1, "activation": "Relu"}
    ),
    "gemm relu": gemm("Relu"),
    "gemm leaky relu": gemm("LeakyRelu", activation_alpha=0.3),
    "gemm hard sigmoid": gemm("HardSigmoid", activation_alpha=0.3, activation_beta=0.4),
    "gemm elu": gemm("Elu", activation_alpha=1.5),
    "gemm selu": gemm("Selu", activation_alpha=1.5, activation_gamma=1.2),
    "gemm sigmoid": gemm("Sigmoid"),
    "gemm tanh": gemm("Tanh"),
    "gemm softplus": gemm("Softplus"),
    "gemm softsign": gemm("Softsign"),
    "gemm celu": gemm("Celu", activation_alpha=1.5),
    "gemm thresholded": gemm("ThresholdedRelu", activation_alpha=0.5),
    "conv": conv(),
    "conv relu": conv(normal(4), activation="Relu", pads=[1, 1, 1, 1]),
    "conv with an addend": conv(normal(4), normal(2, 4, 4, 3), activation="Relu"),
    "conv with an addend and no bias": conv(None, normal(2, 4, 4, 3), activation="Relu"),
    "conv leaky relu": conv(activation="LeakyRelu", activation_params=[0.2], strides=[2, 1]),
    "conv clip": conv(normal(4), activation="Clip", activation_params=[-0.5, 0.75], symbolic=[0]),
    "conv hard sigmoid": conv(activation="HardSigmoid", activation_params=[0.3, 0.4], symbolic=[0]),
    "conv sigmoid": conv(activation="Sigmoid", auto_pad="SAME_UPPER"),
    "conv tanh": conv(activation="Tanh", dilations=[1, 2]),
}


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
