"""What decomposition saves: kernels to write by hand with and without it, counted from the operators.

Without it, every backend needs a kernel for every operator. With it, a backend needs the atomic operators and
the raster, and each other operator one rule, once for all backends. (Walle, OSDI 2022, counts 1,954 and 1,055
for 124 operators over 16 backends.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """Counts for a number of backends."""

    backends: int
    atomic: int
    """ONNX operators that are one atomic operator."""
    transform: int
    """ONNX operators that only move data."""
    composite: int
    """ONNX operators of several steps."""
    atoms: int
    """Atomic operators of plans."""

    @property
    def before(self) -> int:
        """Kernels without decomposition."""
        return (self.atomic + self.transform + self.composite) * self.backends

    @property
    def after(self) -> int:
        """Kernels and rules with it."""
        return (self.atoms + 1) * self.backends + self.transform + self.composite

    @property
    def saved(self) -> float:
        """The share of the work that is saved; negative where decomposition costs more."""
        return 1 - self.after / self.before


def workload(kinds: Iterable[str], atoms: int, backends: int) -> Workload:
    """Count the kernels for `backends` (at least 1).

    Args:
        kinds: of each operator: "atomic", "transform", "composite", or "static" for what is known when the
            plan is made, and needs none.
        atoms: how many atomic operators plans have.
        backends: how many there are.
    """
    counts = Counter(kinds)
    return Workload(backends, counts["atomic"], counts["transform"], counts["composite"], atoms)
