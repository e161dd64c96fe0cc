"""Matrix multiplication."""

import math
from functools import partial

import numpy as np

from libs.runtime.kernels.fault import Array, Kernel


def build(left: Array, right: Array, output: Array) -> Kernel:
    """Return the kernel of (…, m, k) by (…, k, n).

    Where one matrix on the right serves all on the left, as with the weights of a layer, all rows on the left
    go through one multiplication instead of one for each leading index.
    """
    leading = left.shape[:-2]
    if (
        math.prod(leading) > 1
        and left.size
        and all(size == 1 or stride == 0 for size, stride in zip(leading, right.strides, strict=False))
    ):
        rows = math.prod(left.shape[:-1])
        try:
            together = np.reshape(left, (rows, left.shape[-1]), copy=False)
        except ValueError:  # the rows aren't evenly spaced
            pass
        else:
            whole = np.reshape(output, (rows, output.shape[-1]), copy=False)
            return partial(np.matmul, together, right[(0,) * len(leading)], out=whole)
    return partial(np.matmul, left, right, out=output)
