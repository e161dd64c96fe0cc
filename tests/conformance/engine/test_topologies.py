"""Whole published networks, of files that come with the onnx package: their plans agree with ONNX Runtime.

The files hold no weights; random ones of the usual size are put in their place.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper

from libs.runtime.plan import Raster
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.verify import verify

FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"
NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
)

pytestmark = pytest.mark.timeout(600)


def with_weights(path: Path) -> bytes:
    """Return a network with random weights where the file only has their shapes."""
    model = onnx.load(path)
    graph, randomness = model.graph, np.random.default_rng(5)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers = {name: (node.op_type, at) for node in graph.node for at, name in enumerate(node.input)}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = shapes[node.input[0]].tolist()
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        weights = randomness.standard_normal(shape) * spread
        if readers[node.output[0]] in (("BatchNormalization", 1), ("BatchNormalization", 4)):
            weights = np.ones(shape)
        graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), node.output[0]))
    assert len(kept) < len(graph.node)
    # The last one squeezes all differences to nothing where it is sure of itself: compare what goes into it.
    if kept[-1].op_type == "Softmax":
        graph.output[0].name = kept.pop().input[0]
    del graph.node[:]
    graph.node.extend(kept)
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("name", NAMES)
def test_a_network_agrees_with_onnx_runtime(name: str) -> None:
    content = with_weights(FOLDER / f"light_{name}.onnx")
    compiled = compile_model(content, {}, "the suite", Stages(lambda stage: None))
    verdict = verify(compiled.plan, Peer(content).run, 5)
    assert verdict.comparisons == 2
    rasters = sum(isinstance(step.kind, Raster) for step in compiled.plan.steps)
    assert 0 < rasters < compiled.origins.rasters / 3
