"""What there is in the matrix library, by kind."""

from collections.abc import Mapping
from types import MappingProxyType

from libs.compute import matrix
from libs.compute.matrix import fft, linalg

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Creation": tuple(matrix.creation.__all__),
        "Even spacing, windows": tuple(matrix.ranges.__all__),
        "Shape and order of axes": tuple(matrix.shaping.__all__),
        "Joining and splitting": tuple(matrix.joining.__all__),
        "Padding": tuple(matrix.padding.__all__),
        "Arithmetic": tuple(matrix.elementwise.__all__),
        "Rounding": tuple(matrix.rounding.__all__),
        "Powers and logarithms": tuple(matrix.exponential.__all__),
        "Angles": tuple(matrix.trigonometry.__all__),
        "Logic and comparison": tuple(matrix.logic.__all__),
        "Bits": tuple(matrix.bits.__all__),
        "Reductions": tuple(matrix.reduction.__all__),
        "Statistics": tuple(matrix.statistics.__all__),
        "Reductions without NaN": tuple(matrix.missing.__all__),
        "Running sums, differences, convolution": tuple(matrix.running.__all__),
        "Polynomials": tuple(matrix.polynomials.__all__),
        "Sorting, searching, choosing": tuple(matrix.sorting.__all__),
        "Sets and counts": tuple(matrix.sets.__all__),
        "Products": tuple(matrix.products.__all__),
        "Linear algebra": tuple(f"linalg.{name}" for name in linalg.__all__),
        "Fourier transforms": tuple(f"fft.{name}" for name in fft.__all__),
    }
)
"""Names of functions by kind, as numpy spells them."""


def functions() -> tuple[str, ...]:
    """Return the names of all functions, each once."""
    return tuple(dict.fromkeys(name for names in KINDS.values() for name in names))


def markdown() -> str:
    """Return the table of all functions for the documentation."""
    rows = ["| kind | functions | names |", "|---|---:|---|"]
    for kind, names in KINDS.items():
        rows.append(f"| {kind} | {len(names)} | {', '.join(f'`{name}`' for name in names)} |")
    rows.append(f"| all | {len(functions())} | |")
    return "\n".join(rows) + "\n"
