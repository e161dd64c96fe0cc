"""Whole random models, and whether their plans do as the onnx package or ONNX Runtime says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from libs.common.errors import Exhausted, Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.peers import ONNX_RUNTIME, Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_graphs import elementwise, flow, movement, network, special
from services.engine.testing_graphs.drawing import Draw, Source
from services.engine.testing_graphs.sketch import OPSETS, Sketch, evaluate, finished, initializer, port

_PLAIN = (*elementwise.NODES, *movement.NODES, *flow.NODES)
NODES = (
    *_PLAIN,
    *network.NODES,
    *special.NODES,
    flow.branches(_PLAIN),
    flow.loops(_PLAIN),
    flow.scans(_PLAIN),
)
_TIES = frozenset(("TopK", "NonMaxSuppression"))
"""Of equal numbers they may give either."""
KNOWN_REFUSALS = {
    r"\(Squeeze\): sizes .* must be equal": "it names no axes, and how many go depends on data",
    r"no short list of sizes, of a length that is known": "how many sizes there are depends on data",
}
"""Patterns of what may be refused although the model says all sizes, and why."""
_TOLERANCES = {"float16": (2e-2, 2e-2), "float32": (2e-3, 2e-4), "float64": (1e-5, 1e-6)}


Feed = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model, what a call brings, and what comes out by the onnx package."""

    model: onnx.ModelProto
    feed: Mapping[str, Any]
    expected: Mapping[str, Any]
    is_static: bool
    """Whether all shapes are known: nothing but `KNOWN_REFUSALS` may be refused then."""
    grown: Mapping[str, Any] | None
    """What a call brings at other sizes, where those of first axes are dimensions."""

    @property
    def operators(self) -> list[str]:
        """What the graph is made of, bodies apart."""
        return [node.op_type for node in self.model.graph.node]


def draw_model(source: Source, most_nodes: int = 6) -> Drawn | None:
    """Return a random model; None where no node was valid."""
    draw = Draw(source)
    sketch = Sketch(draw, draw.choice(OPSETS))
    for _ in range(draw.integer(1, most_nodes)):
        draw.choice(NODES)(sketch)
    if not sketch.nodes:
        return None
    made = {name for node in sketch.nodes for name in node.output}
    results = [item for item in sketch.items if item.name in made]
    wanted = [item for item in results[:-1] if draw.chance(3)] + results[-1:]
    read = onnx_names(sketch.nodes)
    inputs = {name: value for name, value in sketch.inputs.items() if name in read}
    constants = [initializer(name, array) for name, array in sketch.constants.items() if name in read]
    mode = draw.integer(0, 2)
    ports = [
        port(name, value, None if name in sketch.fixed else _shape(name, value, mode))
        for name, value in inputs.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(item.name) for item in wanted]
    graph = helper.make_graph(sketch.nodes, "random", ports, outputs, constants)
    is_static = mode == 0 and not sketch.fixed & inputs.keys()
    grown = None
    if mode == 1 and not _TIES.intersection(node.op_type for node in sketch.nodes):
        more = draw.integer(1, 3)
        grown = {
            name: value if name in sketch.fixed else _grown(value, more) for name, value in inputs.items()
        }
    expected = {item.name: item.value for item in wanted}
    return Drawn(finished(graph, sketch.opset), inputs, expected, is_static, grown)


def _grown(value: Any, more: int) -> Any:
    """Return an array with more rows, the first ones again."""
    if not isinstance(value, np.ndarray) or not value.ndim or not value.shape[0]:
        return value
    return value[np.arange(value.shape[0] + more) % value.shape[0]]


def _shape(name: str, value: Any, mode: int) -> Sequence[int | str] | None:
    """Return sizes as they are, or the first, or all, as dimensions: equal ones may be one and the same."""
    if mode == 0 or not isinstance(value, np.ndarray):
        return None
    if mode == 1:
        return [f"d{size}" if axis == 0 else size for axis, size in enumerate(value.shape)]
    return [f"{name}_{axis}" for axis in range(value.ndim)]


def onnx_names(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Return all names that nodes, and those of bodies, read."""
    names: set[str] = set()
    for node in nodes:
        names |= set(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                names |= onnx_names(attribute.g.node) | {output.name for output in attribute.g.output}
    return names


def check(drawn: Drawn) -> str:
    """Return "equal", or why a plan was refused.

    Raises AssertionError where it does something else, or where all sizes are known and it is refused.
    """
    content = drawn.model.SerializeToString()
    try:
        plan = compile_model(content, {}, "a test", Stages(lambda stage: None)).plan
        program = Program(decode(encode(plan)))
        found = program.run(drawn.feed)
    except (Invalid, Exhausted) as error:
        if drawn.is_static and not any(re.search(each, error.message) for each in KNOWN_REFUSALS):
            raise AssertionError(f"{error}\n{onnx.printer.to_text(drawn.model.graph)}") from error
        return f"refused: {error.message}"
    _compare(drawn, content, drawn.feed, found, drawn.expected)
    if drawn.grown is not None and (expected := reference(drawn.model, drawn.grown)) is not None:
        try:
            found = program.run(drawn.grown)
        except (Invalid, Exhausted):
            return "equal"  # at the sizes that it was drawn for
        _compare(drawn, content, drawn.grown, found, expected)
    return "equal"


def _compare(
    drawn: Drawn, content: bytes, feed: Feed, found: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    unlike = difference(found, expected)
    if unlike is not None and not _evaluator_is_wrong(drawn.model, content, feed, found):
        raise AssertionError(f"{unlike}\n{onnx.printer.to_text(drawn.model.graph)}\n{feed}")


def _evaluator_is_wrong(model: onnx.ModelProto, content: bytes, feed: Feed, found: Mapping[str, Any]) -> bool:
    """Tell whether ONNX Runtime says as we do: of the whole, or of a node that the evaluator differs in."""
    theirs = _runtime(content, feed)
    if theirs is not None and difference(found, theirs) is None:
        return True
    graph, opset = model.graph, model.opset_import[0].version
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer} | dict(feed)
    for node in graph.node:
        given = {name: values[name] for name in sorted(onnx_names([node]) & values.keys())}
        expected = evaluate([node], given, list(node.output), opset)
        if expected is None:
            return False
        named = dict(zip(node.output, expected, strict=True))
        values |= named
        ports = [port(name, value) for name, value in given.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
        alone = finished(helper.make_graph([node], "one", ports, outputs), opset).SerializeToString()
        theirs = _runtime(alone, given)
        if theirs is None or difference(named, theirs) is None:
            continue
        ours = Program(compile_model(alone, {}, "a test", Stages(lambda stage: None)).plan).run(given)
        if difference(ours, named) is not None and difference(ours, theirs) is None:
            return True
    return False


def _runtime(content: bytes, feed: Mapping[str, Any]) -> Mapping[str, Any] | None:
    try:
        peer = Peer(content)
        found = peer.run(dict(feed))
    except Invalid:
        return None
    return found if peer.name == ONNX_RUNTIME else None


def reference(model: onnx.ModelProto, feed: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the onnx package makes of other inputs; None where it refuses them."""
    names = [output.name for output in model.graph.output]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feed)), strict=True))
        except Exception:  # whatever it raises
            return None


def difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Return how outputs differ, by more than rounding; None where they don't."""
    for name, wanted in expected.items():
        if (text := _difference(found[name], wanted)) is not None:
            return f"{name}: {text}"
    return None


def _difference(found: Any, wanted: Any) -> str | None:
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"{found} instead of {wanted}"
        texts = (_difference(one, other) for one, other in zip(found, wanted, strict=True))
        return next((text for text in texts if text is not None), None)
    wanted = np.asarray(wanted)
    if wanted.dtype.kind in "US":
        wanted = wanted.astype(np.object_)
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.name not in _TOLERANCES:
        same = np.array_equal(found, wanted)
    else:
        relative, absolute = _TOLERANCES[wanted.dtype.name]
        peak = float(np.max(np.abs(wanted.astype(np.float64)), initial=0.0, where=np.isfinite(wanted)))
        same = np.allclose(found, wanted, relative, absolute * max(1.0, peak), equal_nan=True)
    return None if same else f"{found.tolist()} instead of {wanted.tolist()}"
