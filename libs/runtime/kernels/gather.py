"""Picking by index."""

from functools import partial

from libs.runtime.kernels.fault import Array, DataFault, Kernel


def build(data: Array, indices: Array, output: Array, axis: int) -> Kernel:
    """Return the kernel that replaces `axis` of the data by the shape of the indices."""
    return partial(_gather, data, indices, output, axis)


def _gather(data: Array, indices: Array, output: Array, axis: int) -> None:
    size = data.shape[axis]
    if not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < -size or high >= size:
        wrong = low if low < -size else high
        raise DataFault(f"index {wrong} is out of range: there are {size} to gather from")
    if output.size:
        # Within that range, wrapping is counting from the end; the mode "raise" would buffer the output.
        data.take(indices, axis, output, "wrap")
