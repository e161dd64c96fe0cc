"""The things that the engine's parts hand each other."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.domain.explain import Origins

STAGES = ("read", "decompose", "merge", "lower", "verify")
"""In order."""


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


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as a file's content, and how it came about."""

    plan: bytes
    origins: Origins
    verdict: Verdict | None
    """None where it wasn't compared."""
