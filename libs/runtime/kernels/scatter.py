"""Writing by index."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from libs.runtime.kernels.fault import Array, DataFault, Kernel

_COMBINE: Mapping[str, np.ufunc] = {
    "scatter_add": np.add,
    "scatter_mul": np.multiply,
    "scatter_max": np.maximum,
    "scatter_min": np.minimum,
}


def build(name: str, data: Array, indices: Array, updates: Array, output: Array) -> Kernel:
    """Return the kernel that puts or combines updates at indices along axis 0 of a copy of the data."""
    return partial(_scatter, _COMBINE.get(name), data, indices, updates, output)


def _scatter(combine: Any, data: Array, indices: Array, updates: Array, output: Array) -> None:
    np.copyto(output, data)
    size = output.shape[0]
    if not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < -size or high >= size:
        wrong = low if low < -size else high
        raise DataFault(f"index {wrong} is out of range: there are {size} to write to")
    if combine is None:
        output[indices] = updates
    else:
        combine.at(output, indices, updates)
