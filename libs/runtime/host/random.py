"""Random bits."""

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import DataFault

_MOST = 1 << 40
_MOST_AXES = 8


def bits(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return evenly distributed numbers of 32 bits: the same in every call with a seed, others without.

    They are Philox-4x64's (Salmon and others, SC 2011) of 10 rounds, with the seed as its key and a counter
    that starts at 1; of each number of 64 bits the lower half comes first.
    """
    sizes = [int(size) for size in inputs[0].reshape(-1)[: _MOST_AXES + 1]]
    if len(sizes) > _MOST_AXES or min(sizes, default=0) < 0 or math.prod(sizes) > _MOST:
        raise DataFault(f"random numbers are asked for in the shape {sizes}")
    count = math.prod(sizes)
    # Twice: as they come, and as they are given back.
    limits.take(8 * count)
    seed = integers[0] & ((1 << 64) - 1) if integers else secrets.randbits(64)
    made = np.random.Philox(key=seed).random_raw((count + 1) // 2)
    return [np.asarray(made, "<u8").view("<u4")[:count].reshape(sizes).copy()]
