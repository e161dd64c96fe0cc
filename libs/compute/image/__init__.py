"""Functions with OpenCV's names, arguments and results, on arrays that run at once or are traced into plans.

Results are returned: there is no `dst`. Each raises Invalid for what it doesn't take, and Exhausted for what
is too large to hold; messages start with the function's name and say which argument is meant.
docs/compute-image.md has the table of all functions, and how near each comes to OpenCV's.

    constants, colour_codes   OpenCV's constants
    pixels                    what is taken, how it is rounded, plain names for operators
    arithmetic, polar, channels, borders
    filters, smoothing, kernels, ranks, morphology, pyramids, edges
    resizing, taps, warping, sampling
    colour, colour_luma, colour_cones, colour_cie
    statistics, histograms, thresholding, matching, shapes, regions
    drawing, detection, codecs
    catalogue                 what there is, for the documentation
    samples                   a call or more of each function, for tests
"""

# ruff: noqa: F403
from libs.compute.image import (
    arithmetic,
    borders,
    channels,
    codecs,
    colour,
    colour_codes,
    constants,
    detection,
    drawing,
    edges,
    filters,
    histograms,
    kernels,
    matching,
    morphology,
    polar,
    pyramids,
    ranks,
    regions,
    resizing,
    shapes,
    smoothing,
    statistics,
    thresholding,
    warping,
)
from libs.compute.image.arithmetic import *
from libs.compute.image.borders import *
from libs.compute.image.channels import *
from libs.compute.image.codecs import *
from libs.compute.image.colour import *
from libs.compute.image.colour_codes import *
from libs.compute.image.constants import *
from libs.compute.image.detection import *
from libs.compute.image.drawing import *
from libs.compute.image.edges import *
from libs.compute.image.filters import *
from libs.compute.image.histograms import *
from libs.compute.image.kernels import *
from libs.compute.image.matching import *
from libs.compute.image.morphology import *
from libs.compute.image.polar import *
from libs.compute.image.pyramids import *
from libs.compute.image.ranks import *
from libs.compute.image.regions import *
from libs.compute.image.resizing import *
from libs.compute.image.shapes import *
from libs.compute.image.smoothing import *
from libs.compute.image.statistics import *
from libs.compute.image.thresholding import *
from libs.compute.image.warping import *

__all__ = [
    name for name in (*vars(constants), *vars(colour_codes)) if name.isupper() or name.startswith("COLOR_")
]
__all__ += arithmetic.__all__
__all__ += borders.__all__
__all__ += channels.__all__
__all__ += codecs.__all__
__all__ += colour.__all__
__all__ += detection.__all__
__all__ += drawing.__all__
__all__ += edges.__all__
__all__ += filters.__all__
__all__ += histograms.__all__
__all__ += kernels.__all__
__all__ += matching.__all__
__all__ += morphology.__all__
__all__ += polar.__all__
__all__ += pyramids.__all__
__all__ += ranks.__all__
__all__ += regions.__all__
__all__ += resizing.__all__
__all__ += shapes.__all__
__all__ += smoothing.__all__
__all__ += statistics.__all__
__all__ += thresholding.__all__
__all__ += warping.__all__
