"""Random bits."""

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import DataFault

_MOST = 1 << 40


def bits(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return evenly distributed numbers of 32 bits: the same in every call with a seed, others without."""
    sizes = [int(size) for size in inputs[0].reshape(-1)]
    if any(size < 0 for size in sizes) or np.prod([float(size) for size in sizes]) > _MOST or len(sizes) > 8:
        raise DataFault(f"random numbers are asked for in the shape {sizes[:8]}")
    count = int(np.prod(sizes, dtype=np.int64))
    limits.take(4 * count)
    seed = integers[0] & ((1 << 64) - 1) if integers else secrets.randbits(64)
    made = np.random.Philox(seed).random_raw((count + 1) // 2)
    return [np.asarray(made, np.uint64).view(np.uint32)[:count].reshape(sizes).copy()]
