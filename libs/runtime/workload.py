"""What decomposition saves: kernels to write by hand with and without it, counted from the operators.

Without it, every backend needs a kernel for every operator. With it, a backend needs the atomic operators and
the raster, and each other operator one rule, once for all backends. What works on lists, strings and control
flow isn't for backends: it is written once either way, as host operators and rules.

The count is that of Lv et al., "Walle: An End-to-End, General-Purpose, and Large-Scale Production System for
Device-Cloud Collaborative Machine Learning", OSDI 2022: 1,954 and 1,055 for 124 operators over 16 backends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

CONTROL_FLOW = 2
"""Branch and loop: what runs blocks, in each runtime's own language."""
OWN_BACKENDS = ("portable", "AVX2", "AVX-512", "aarch64", "CUDA")
"""That this project writes kernels for."""


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
    control: int = 0
    """ONNX operators of control flow, and on lists and strings: written once, whatever the backends."""
    host: int = 0
    """What they need of a runtime, once."""

    @property
    def operators(self) -> int:
        """ONNX operators that somebody has to write."""
        return self.atomic + self.transform + self.composite + self.control

    @property
    def before(self) -> int:
        """Kernels without decomposition."""
        return (self.atomic + self.transform + self.composite) * self.backends + self.control

    @property
    def after(self) -> int:
        """Kernels and rules with it."""
        rules = self.transform + self.composite + self.control
        return (self.atoms + 1) * self.backends + self.host + rules

    @property
    def saved(self) -> float:
        """The share of the work that is saved; negative where decomposition costs more."""
        return 1 - self.after / self.before


PUBLISHED = Workload(backends=16, atomic=61, transform=45, composite=16, atoms=61, control=2)
"""The paper's own counts."""


def workload(kinds: Iterable[str], atoms: int, host: int, backends: int) -> Workload:
    """Count the kernels for `backends` (at least 1).

    Args:
        kinds: of each operator: "atomic", "transform", "composite", "control", or "static" for what is known
            when the plan is made, and needs none.
        atoms: how many atomic operators plans have.
        host: how many host operators plans have; branches and loops come on top.
        backends: how many there are.
    """
    counts = Counter(kinds)
    return Workload(
        backends,
        counts["atomic"],
        counts["transform"],
        counts["composite"],
        atoms,
        counts["control"],
        host + CONTROL_FLOW,
    )


def workload_table(kinds: Iterable[str], atoms: int, host: int) -> list[tuple[str, Workload]]:
    """Return the paper's counts, and those for operators of these kinds on as many backends, and on ours."""
    known = list(kinds)
    counted = [
        (f"this project, {PUBLISHED.backends} backends", PUBLISHED.backends),
        (f"this project, its own: {', '.join(OWN_BACKENDS)}", len(OWN_BACKENDS)),
        ("this project, 1 backend", 1),
    ]
    return [
        ("Walle as published, 16 backends", PUBLISHED),
        *((label, workload(known, atoms, host, backends)) for label, backends in counted),
    ]


HEADINGS = ("", "operators", "kernels without", "kernels and rules with", "saved")


def workload_cells(label: str, found: Workload) -> tuple[str, ...]:
    """Return a row of the table under `HEADINGS`."""
    return (
        label,
        str(found.operators),
        f"{found.before:,}",
        f"{found.after:,}",
        f"{100 * found.saved:.0f} %",
    )
