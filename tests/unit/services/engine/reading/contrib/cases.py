"""Models of one operator of ONNX Runtime, and what a plan and ONNX Runtime make of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx.helper import np_dtype_to_tensor_dtype

from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.peers import ONNX_RUNTIME, Peer
from services.engine.pipeline import Stages, compile_model

RANDOM = np.random.default_rng(11)
Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


def whole(*shape: int, dtype: Any = np.uint8) -> Array:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def number(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        operator: of it.
        inputs: arrays; None where one is left out.
        attributes: of it.
        outputs: that it has; others before the last one are left out.
        opset: of the default domain.
        symbolic: whether the inputs' sizes are dimensions without a number.
        constants: positions of inputs that are constants of the model.
        domain: of the operator.
        within: how far results may differ: of floats relative to max(1, |expected|), of integers in steps.
    """

    operator: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[int] = (0,)
    opset: int = 17
    symbolic: bool | Collection[int] = False
    constants: Collection[int] = ()
    domain: str = "com.microsoft"
    within: float = 0.0

    def model(self) -> ModelProto:
        names = [f"x{index}" if each is not None else "" for index, each in enumerate(self.inputs)]
        outputs = [f"y{index}" if index in self.outputs else "" for index in range(max(self.outputs) + 1)]
        node = helper.make_node(
            self.operator, names, outputs, name="only", domain=self.domain, **self.attributes
        )
        given = [(index, each) for index, each in enumerate(self.inputs) if each is not None]
        chosen = range(len(self.inputs)) if self.symbolic is True else self.symbolic or ()
        ports = [
            helper.make_tensor_value_info(
                f"x{index}",
                np_dtype_to_tensor_dtype(each.dtype),
                [
                    f"d{index}_{axis}" if index in chosen and axis == 0 else n
                    for axis, n in enumerate(each.shape)
                ],
            )
            for index, each in given
            if index not in self.constants
        ]
        constants = [
            numpy_helper.from_array(each, f"x{index}") for index, each in given if index in self.constants
        ]
        ends = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
        graph = helper.make_graph([node], "one", ports, ends, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=8 if self.opset < 21 else 10)

    def feed(self) -> dict[str, Array]:
        return {
            f"x{index}": each
            for index, each in enumerate(self.inputs)
            if each is not None and index not in self.constants
        }


def planned(model: ModelProto, feed: Mapping[str, Array]) -> Mapping[str, Any]:
    compiled = compile_model(model.SerializeToString(), {}, "a test", Stages(lambda stage: None))
    return Program(decode(encode(compiled.plan))).run(dict(feed))


def check(case: Case) -> None:
    """Assert that a plan gives what ONNX Runtime does."""
    model, feed = case.model(), case.feed()
    peer = Peer(model.SerializeToString())
    expected = peer.run(dict(feed))
    assert peer.name == ONNX_RUNTIME
    got = planned(model, feed)
    assert list(expected) == [f"y{index}" for index in sorted(case.outputs)]
    for name, right in expected.items():
        assert got[name].dtype == right.dtype
        assert got[name].shape == right.shape
        difference = np.abs(got[name].astype(np.float64) - right.astype(np.float64))
        if right.dtype.kind != "f":
            assert difference.max(initial=0) <= case.within, name
        else:
            least = 2e-3 if right.dtype == np.float16 else 1e-5 if right.dtype == np.float32 else 1e-9
            scale = np.maximum(1, np.abs(right.astype(np.float64)))
            assert (difference / scale).max(initial=0) <= max(case.within, least), name


def named(cases: Mapping[str, Case]) -> Any:
    """Parametrise a test over cases by name."""
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())
