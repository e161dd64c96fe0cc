"""Calls of every function, for comparing with OpenCV, and what runs at once with what is traced.

numpy arrays in them are what is traced; everything else is known then.
"""

from libs.compute.image.samples import measures, pixels, places, windows
from libs.compute.image.samples.parts import Case, Maker

KINDS = (
    pixels.arithmetic,
    pixels.polar,
    pixels.channels,
    pixels.colours,
    windows.filters,
    windows.ranks,
    windows.thresholds,
    places.sizes,
    places.places,
    places.drawing,
    measures.statistics,
    measures.shapes,
)
"""Makers of calls, by kind."""


def cases() -> dict[str, list[Case]]:
    """Return the calls of each function, by its name."""
    found: dict[str, list[Case]] = {}
    for kind in KINDS:
        for case in kind(Maker(kind.__name__)):
            found.setdefault(case.name, []).append(case)
    return found
