"""Models as ONNX Runtime's optimiser and quantiser write them: plans agree with what they were written by."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_models import attention, conv_net, embedding, mlp
from services.engine.verify import verify

MODELS = {"attention": attention, "conv_net": conv_net, "embedding": embedding, "mlp": mlp}
Feed = dict[str, Any]


def feed(model: bytes, seed: int) -> Feed:
    """Return random inputs; dimensions without a number are 2."""
    random = np.random.default_rng(seed)
    arrays: Feed = {}
    graph = onnx.load_from_string(model).graph
    constants = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        if info.name not in constants:
            tensor = info.type.tensor_type
            shape = [size.dim_value or 2 for size in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            values = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 3, shape)
            arrays[info.name] = values.astype(dtype)
    return arrays


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands the quantiser a few inputs."""

    def __init__(self, model: bytes) -> None:
        self._feeds: Iterator[Feed] = (feed(model, seed) for seed in range(8))

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def optimised(model: bytes, folder: Path) -> bytes:
    options = ort.SessionOptions()
    # Beyond it are layouts of one kind of processor.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return (folder / "optimised.onnx").read_bytes()


def quantised(model: bytes, folder: Path, way: str, *, reduce_range: bool = True) -> bytes:
    logging.getLogger().setLevel(logging.ERROR)
    source, target = folder / "model.onnx", folder / "quantised.onnx"
    source.write_bytes(model)
    if way == "dynamic":
        quantize_dynamic(source, target, weight_type=QuantType.QUInt8)
    else:
        type_ = QuantType.QInt8 if way == "signed" else QuantType.QUInt8
        form = QuantFormat.QDQ if "pairs" in way else QuantFormat.QOperator
        # Weights of 7 bits: its sums of products of 8 overflow on some processors.
        options = {"activation_type": type_, "weight_type": type_, "reduce_range": reduce_range}
        quantize_static(source, target, Reader(model), quant_format=form, **options)
    return target.read_bytes()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The quantiser says on the root logger what it advises."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


def agrees(model: bytes, *operators: str) -> None:
    """Assert that the model has operators of ONNX Runtime, and that its plan gives the same."""
    found = Counter(node.op_type for node in onnx.load_from_string(model).graph.node if node.domain)
    assert found.keys() >= set(operators), found
    plan = decode(encode(compile_model(model, {}, "a test", Stages(lambda stage: None)).plan))
    for seed in (98, 99):
        given = feed(model, seed)
        got, expected = Program(plan).run(given), Peer(model).run(dict(given))
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)


FOUND = {
    ("attention", "optimised"): ("FusedMatMul", "SkipLayerNormalization"),
    ("attention", "unsigned"): ("QLinearAdd", "QLinearSoftmax"),
    ("attention", "dynamic, optimised"): ("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    ("conv_net", "optimised"): ("FusedConv",),
    ("conv_net", "signed"): ("QLinearGlobalAveragePool", "QGemm"),
    ("embedding", "signed"): ("QLinearMul", "QLinearSigmoid"),
    ("mlp", "optimised"): ("FusedGemm",),
    ("mlp", "pairs, optimised"): ("QGemm", "QLinearSoftmax"),
}
"""Some of what is known to be in them."""
WAYS = ("optimised", "unsigned", "signed", "pairs", "pairs, optimised", "dynamic", "dynamic, optimised")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_agrees(name: str, way: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    kind, _, then = way.partition(", ")
    if kind != "optimised":
        model = quantised(model, tmp_path, kind)
    if "optimised" in (kind, then):
        model = optimised(model, tmp_path)
    agrees(model, *FOUND.get((name, way), ()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_of_8_bits_pass_on_every_processor(name: str, tmp_path: Path) -> None:
    model = quantised(MODELS[name](), tmp_path, "signed weights", reduce_range=False)
    peer = Peer(model)
    plan = compile_model(model, {}, "a test", Stages(lambda stage: None)).plan
    assert verify(plan, peer.run, 5, peer.second_opinion).comparisons >= 2
