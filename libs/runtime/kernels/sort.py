"""Order."""

from functools import partial

import numpy as np

from libs.runtime.kernels.fault import Array, Kernel


def build(value: Array, output: Array, axis: int) -> Kernel:
    """Return the kernel that says in which order elements ascend; NaN are last, equal ones stay."""
    return partial(_sort, value, output, axis)


def _sort(value: Array, output: Array, axis: int) -> None:
    output[...] = np.argsort(value, axis=axis, kind="stable")
