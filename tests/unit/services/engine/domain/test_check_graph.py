from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from services.engine.domain.check_graph import check_graph
from services.engine.domain.extents import Bounds
from services.engine.domain.graph import Node
from services.engine.testing import graph_of

SOUND = graph_of(
    [Node("a", "Add", ("x", "c"), ("m",)), Node("r", "Relu", ("m",), ("y",))],
    {"x": ("n", 3)},
    ["y"],
    {"c": np.ones(3, np.float32)},
)


def test_a_sound_graph_passes() -> None:
    check_graph(SOUND)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("a graph of opset 6", {"opset": 6}),
        ("digest is 'abc'", {"digest": "abc"}),
        ("dimension 'n' is bounded by 4 and 4", {"bounds": Bounds({"n": (4, 4)})}),
        ("input 'x' has sizes n, which have no bounds", {"bounds": Bounds({})}),
        ("'x' is an input and a constant", {"constants": {"x": np.ones(3, np.float32)}}),
        ("complex64 are not supported", {"constants": {"c": np.ones(3, np.complex64)}}),
        (r"node r \(Relu\) reads 'm' before it is written", {"nodes": SOUND.nodes[::-1]}),
        (r"node a \(Add\) writes 'm' once more", {"nodes": SOUND.nodes[:1] * 2}),
        ("nothing writes output 'z'", {"outputs": ("z",)}),
    ],
)
def test_each_fault_is_named(text: str, change: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=text):
        check_graph(replace(SOUND, **change))
