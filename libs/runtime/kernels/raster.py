"""Data movement."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from libs.runtime.kernels.fault import Array, Kernel


def build(moves: Sequence[tuple[Array, Array]], output: Array, fill: Array | None) -> list[Kernel]:
    """Return the kernels of a raster, in order; `moves` are pairs of destination and source."""
    kernels: list[Kernel] = []
    if fill is not None:
        kernels.append(partial(np.copyto, output, fill))
    kernels.extend(partial(np.copyto, destination, source) for destination, source in moves)
    return kernels
