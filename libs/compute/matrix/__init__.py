"""Functions with numpy's names, arguments and results, on arrays that run at once or are traced into plans.

Each raises Invalid for what it doesn't take, and Exhausted for what is too large to hold.

`linalg` and `fft` are namespaces, as in numpy. docs/compute.md has the table of all functions, and how they
differ from numpy's.
"""

# ruff: noqa: F403
import math

from libs.compute.matrix import (
    bits,
    creation,
    elementwise,
    exponential,
    fft,
    joining,
    linalg,
    logic,
    missing,
    padding,
    polynomials,
    products,
    ranges,
    reduction,
    rounding,
    running,
    sets,
    shaping,
    sorting,
    statistics,
    trigonometry,
)
from libs.compute.matrix.bits import *
from libs.compute.matrix.creation import *
from libs.compute.matrix.elementwise import *
from libs.compute.matrix.exponential import *
from libs.compute.matrix.joining import *
from libs.compute.matrix.logic import *
from libs.compute.matrix.missing import *
from libs.compute.matrix.padding import *
from libs.compute.matrix.polynomials import *
from libs.compute.matrix.products import *
from libs.compute.matrix.ranges import *
from libs.compute.matrix.reduction import *
from libs.compute.matrix.rounding import *
from libs.compute.matrix.running import *
from libs.compute.matrix.sets import *
from libs.compute.matrix.shaping import *
from libs.compute.matrix.sorting import *
from libs.compute.matrix.statistics import *
from libs.compute.matrix.trigonometry import *
from libs.compute.tensor import Tensor

pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
euler_gamma = 0.5772156649015329
newaxis = None

__all__ = ["Tensor", "e", "euler_gamma", "fft", "inf", "linalg", "nan", "newaxis", "pi"]
__all__ += bits.__all__
__all__ += creation.__all__
__all__ += elementwise.__all__
__all__ += exponential.__all__
__all__ += joining.__all__
__all__ += logic.__all__
__all__ += missing.__all__
__all__ += padding.__all__
__all__ += polynomials.__all__
__all__ += products.__all__
__all__ += ranges.__all__
__all__ += reduction.__all__
__all__ += rounding.__all__
__all__ += running.__all__
__all__ += sets.__all__
__all__ += shaping.__all__
__all__ += sorting.__all__
__all__ += statistics.__all__
__all__ += trigonometry.__all__
