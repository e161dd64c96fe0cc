"""What there is in the image library, by kind, and how near it comes to OpenCV."""

import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType

from libs.compute import image

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Arithmetic": tuple(image.arithmetic.__all__),
        "Real numbers": tuple(image.polar.__all__),
        "Channels, order": tuple(image.channels.__all__),
        "Borders": tuple(image.borders.__all__),
        "Colour": tuple(image.colour.__all__),
        "Sizes": (*image.resizing.__all__, *image.pyramids.__all__),
        "Places": tuple(image.warping.__all__),
        "Kernels": tuple(image.kernels.__all__),
        "Filters": (*image.filters.__all__, *image.smoothing.__all__, *image.ranks.__all__),
        "Morphology": tuple(image.morphology.__all__),
        "Edges, corners": tuple(image.edges.__all__),
        "Thresholds": tuple(image.thresholding.__all__),
        "Statistics": tuple(image.statistics.__all__),
        "Histograms": tuple(name for name in image.histograms.__all__ if name != "CLAHE"),
        "Matching": tuple(image.matching.__all__),
        "Points, outlines": tuple(image.shapes.__all__),
        "Regions": tuple(image.regions.__all__),
        "Drawing": tuple(image.drawing.__all__),
        "Detection": tuple(image.detection.__all__),
        "Files": tuple(image.codecs.__all__),
    }
)
"""Names of functions by kind, as OpenCV spells them."""


def functions() -> tuple[str, ...]:
    """Return the names of all functions, each once."""
    return tuple(dict.fromkeys(name for names in KINDS.values() for name in names))


def agreement(name: str) -> str:
    """Return what a function's documentation says about how near it comes to OpenCV."""
    text = inspect.getdoc(getattr(image, name)) or ""
    _, _, said = text.partition("\nOpenCV: ")
    return re.sub(r"\s+", " ", said.partition("\n\n")[0]).strip()


def markdown() -> str:
    """Return the table of all functions for the documentation."""
    rows = ["| kind | function | against OpenCV 5 |", "|---|---|---|"]
    for kind, names in KINDS.items():
        for place, name in enumerate(sorted(names, key=str.lower)):
            arguments = ", ".join(inspect.signature(getattr(image, name)).parameters)
            rows.append(f"| {'' if place else kind} | `{name}({arguments})` | {agreement(name)} |")
    rows.append(f"| all | {len(functions())} | |")
    return "\n".join(rows) + "\n"
