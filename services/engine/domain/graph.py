"""An ONNX model as a typed graph: what reading makes and decomposition takes apart. No protobuf here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.program import ValueType


@dataclass(frozen=True, slots=True)
class LooseTensor:
    """A tensor of which less is known than a `ValueType` says."""

    type: DataType
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class SequenceOf:
    """A list; of what, may be unknown."""

    element: LooseTensor | SequenceOf | OptionalOf | None


@dataclass(frozen=True, slots=True)
class OptionalOf:
    """Something or nothing."""

    element: LooseTensor | SequenceOf | None


Declared = LooseTensor | SequenceOf | OptionalOf
"""What a model says that a value is."""
InputType = ValueType | Declared
"""Of an input of a model: a tensor of known rank is a `ValueType`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input of a body. What it declares of its type is a hint: values that come in know better."""

    name: str
    declared: Declared | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A graph within a node. Its nodes may read values of the graphs around it by name."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    nodes: tuple[Node, ...]
    """In an order in which they can run."""

    def reads(self) -> dict[str, str]:
        """Return the names that it reads of the graphs around it, each with its reader's origin, or ""."""
        own = {parameter.name for parameter in self.inputs} | self.constants.keys()
        own.update(name for node in self.nodes for name in node.outputs)
        found: dict[str, str] = {}
        for node in self.nodes:
            for name, reader in node.reads().items():
                if name not in own:
                    found.setdefault(name, reader)
        for name in self.outputs:
            if name not in own:
                found.setdefault(name, "")
        return found


Constant = npt.NDArray[np.generic]
"""Of strings: an array of objects, each a str."""
Attribute = (
    int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Constant | Body | Declared
)
"""A `Declared` is what ONNX calls a type proto, such as that of Optional."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the model."""

    name: str
    """As in the model, or "#<position>" where it has none."""
    operator: str
    """Such as "Gemm"; with its domain and a colon where that isn't ONNX's default: "ai.onnx.ml:Binarizer"."""
    inputs: tuple[str, ...]
    """Names of values; "" where an optional one is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """How messages and steps call it."""
        return f"{self.name} ({self.operator})"

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Its attributes that are graphs."""
        return tuple(value for value in self.attributes.values() if isinstance(value, Body))

    def reads(self) -> dict[str, str]:
        """Return the names that it and its bodies read of the graph it is in, each with who reads it."""
        found = dict.fromkeys(filter(None, self.inputs), self.origin)
        for body in self.bodies:
            for name, reader in body.reads().items():
                found.setdefault(name, reader or self.origin)
        return found


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: nodes in an order in which they can run."""

    name: str
    opset: int
    """Of the default domain; the newest where the model imports no such one."""
    digest: str
    """Of the file, "sha256:<hex>"."""
    inputs: Mapping[str, InputType]
    """In the model's order."""
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    nodes: tuple[Node, ...]
    bounds: Bounds
    types: Mapping[str, LooseTensor] = field(default_factory=dict)
    """What ONNX's own inference says of tensors by name, of those in bodies too where it is one thing."""
    domains: Mapping[str, int] = field(default_factory=dict)
    """Versions of the other domains that the model imports, such as ai.onnx.ml, by name."""
