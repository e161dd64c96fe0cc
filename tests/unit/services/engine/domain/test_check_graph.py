from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from services.engine.domain.bounds import Bounds
from services.engine.domain.check_graph import check_graph
from services.engine.domain.graph import Body, Node, Parameter
from services.engine.testing import graph_of

SOUND = graph_of(
    [Node("a", "Add", ("x", "c"), ("m",)), Node("r", "Relu", ("m",), ("y",))],
    {"x": ("n", 3)},
    ["y"],
    {"c": np.ones(3, np.float32)},
)


def within(read: str, written: str, *parameters: str, **constants: Any) -> tuple[Node, ...]:
    """Return nodes of which one holds a graph that reads and writes."""
    inner = Node("r", "Relu", (read,), (written,))
    inputs = tuple(Parameter(name) for name in parameters or ("k",))
    body = Body("b", inputs, (written or "v",), constants, (inner,))
    node = Node("if i", "If", ("x",), ("y",), {"then_branch": body})
    return node, Node("l", "Relu", ("x",), ("late",))


def test_a_sound_graph_passes() -> None:
    check_graph(SOUND)
    check_graph(replace(SOUND, nodes=within("c", "w")))
    check_graph(replace(SOUND, nodes=within("x", "w", "x")))  # its own x hides the other
    check_graph(replace(SOUND, nodes=(*within("x", "w"), Node("a", "Abs", ("x",), ("w",)))))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("a graph of opset 6", {"opset": 6}),
        ("digest is 'abc'", {"digest": "abc"}),
        ("dimension 'n' is bounded by 4 and 4", {"bounds": Bounds({"n": (4, 4)})}),
        ("input 'x' has sizes n, which have no bounds", {"bounds": Bounds({})}),
        ("'x' is an input and a constant", {"constants": {"x": np.ones(3, np.float32)}}),
        ("complex256 are not supported", {"constants": {"c": np.ones(3, np.clongdouble)}}),
        ("holds something else than strings", {"constants": {"c": np.array(["a", 1], np.object_)}}),
        (r"node r \(Relu\) reads 'm' before it is written", {"nodes": SOUND.nodes[::-1]}),
        (r"node a \(Add\) writes 'm' once more", {"nodes": SOUND.nodes[:1] * 2}),
        ("nothing writes output 'z'", {"outputs": ("z",)}),
        (
            r"if i \(If\): in its graph 'b': node r \(Relu\) reads 'late' before",
            {"nodes": within("late", "w")},
        ),
        (r"in its graph 'b': node r \(Relu\) writes 'x' once more", {"nodes": within("x", "x")}),
        (r"in its graph 'b': 'k' is an input and a constant", {"nodes": within("x", "w", k=np.ones(1))}),
        (r"two inputs of its graph 'b' have one name", {"nodes": within("x", "w", "k", "k")}),
        (r"in its graph 'b': nothing writes output 'v'", {"nodes": within("x", "")}),
    ],
)
def test_each_fault_is_named(text: str, change: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=text):
        check_graph(replace(SOUND, **change))
