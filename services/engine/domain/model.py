"""The things that the engine's parts hand each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from libs.common.blobs import BlobRef
from services.engine.domain.explanation import Origins

STAGES = ("read", "decompose", "merge", "lower", "verify")
"""In order."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to work on, as files of a tenant."""

    file: BlobRef
    """The ONNX file."""
    data: Mapping[str, BlobRef] = field(default_factory=dict)
    """Files that it keeps its data in, by their path in its folder."""

    @property
    def size_bytes(self) -> int:
        """All together."""
        return self.file.size_bytes + sum(ref.size_bytes for ref in self.data.values())


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that has ended."""

    name: str
    elapsed_s: float
    summary: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a plan compared with ONNX Runtime."""

    max_error: float
    """The largest difference, relative to max(1, |expected|)."""
    comparisons: int
    """How many sets of inputs were compared."""
    overruled: int = 0
    """In how many of them ONNX Runtime was wrong, by the second opinion; known while a plan is made."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as a file's content, and how it came about."""

    plan: bytes
    origins: Origins
    verdict: Verdict | None
    """None where it wasn't compared."""
