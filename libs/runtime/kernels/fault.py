"""What kernels have in common."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kernel = Callable[[], object]
"""Computes one step; what it returns means nothing."""


class DataFault(Exception):
    """The values at hand have no result: an index out of range, an integer divided by 0."""


def flat(array: Array) -> Array:
    """Return a contiguous array as one of rank 1 in the same memory."""
    return np.reshape(array, -1, copy=False)
