"""An ONNX model as a typed graph: what reading makes and decomposition takes apart. No protobuf here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.engine.domain.extents import Bounds
from services.engine.domain.program import ValueType

Attribute = (
    int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | npt.NDArray[np.generic]
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the model."""

    name: str
    """As in the model, or "#<position>" where it has none."""
    operator: str
    """Such as "Gemm"; of the default domain."""
    inputs: tuple[str, ...]
    """Names of values; "" where an optional one is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """How messages and steps call it."""
        return f"{self.name} ({self.operator})"


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: nodes in an order in which they can run."""

    name: str
    opset: int
    """Of the default domain."""
    digest: str
    """Of the file, "sha256:<hex>"."""
    inputs: Mapping[str, ValueType]
    """In the model's order."""
    outputs: tuple[str, ...]
    constants: Mapping[str, npt.NDArray[np.generic]]
    nodes: tuple[Node, ...]
    bounds: Bounds
