"""Sliding windows: what convolution and pooling share."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.domain import symbolic
from services.engine.domain.bounds import Bounds
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Move, Shape, Value

ZERO = Extent.of(0)
LARGEST_KERNEL = 1 << 16
"""Of one axis of a kernel, of a stride, a dilation and a padding."""


@dataclass(frozen=True, slots=True)
class Window:
    """Along one spatial axis; sizes in elements. `before` and `after` are what the input is padded by."""

    kernel: int
    stride: int
    dilation: int
    before: Extent
    after: Extent
    size: Extent
    """Of the input."""
    extra: Extent = ZERO
    """Further padding behind, where the last window is rounded up."""

    @property
    def reach(self) -> int:
        """From the first to the last element of a window, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def padded(self) -> Extent:
        """Size of the input with its padding."""
        return self.before + self.size + self.after + self.extra

    @property
    def count(self) -> Extent:
        """Number of windows."""
        return (self.padded - self.reach) // self.stride + 1


def integers_of(call: Call, name: str, length: int, default: int, lowest: int) -> tuple[int, ...]:
    """Return an attribute that lists so many integers, `lowest` to `LARGEST_KERNEL` each."""
    values = call.integers(name) or (default,) * length
    if len(values) != length or not all(lowest <= value <= LARGEST_KERNEL for value in values):
        call.fail(
            f"attribute {name!r} is {list(values)}; it needs {length} values, {lowest} to {LARGEST_KERNEL}"
        )
    return values


def read_windows(call: Call, sizes: Shape, kernel: tuple[int, ...]) -> tuple[Window, ...]:
    """Return the windows that a node's attributes ask for, along spatial axes of `sizes`."""
    length, bounds = len(sizes), call.builder.bounds
    if not all(1 <= size <= LARGEST_KERNEL for size in kernel):
        call.fail(f"the kernel's shape is {list(kernel)}; sizes are 1 to {LARGEST_KERNEL}")
    strides = integers_of(call, "strides", length, 1, 1)
    dilations = integers_of(call, "dilations", length, 1, 1)
    pads = integers_of(call, "pads", 2 * length, 0, 0)
    mode = call.text("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if mode != "NOTSET" and any(pads):
        call.fail(f"attribute 'pads' contradicts attribute 'auto_pad' = {mode}")
    windows = []
    for axis, size in enumerate(sizes):
        before, after = Extent.of(pads[axis]), Extent.of(pads[length + axis])
        if mode.startswith("SAME"):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            before, after = _same(size, strides[axis], reach, mode == "SAME_UPPER", bounds)
        window = Window(kernel[axis], strides[axis], dilations[axis], before, after, size)
        windows.append(_rounded_up(call, window) if call.flag("ceil_mode") else window)
    return tuple(windows)


def _same(size: Extent, stride: int, reach: int, upper: bool, bounds: Bounds) -> tuple[Extent, Extent]:
    """Return the padding with which there are ⌈size / stride⌉ windows."""
    total = (symbolic.ceil_divide(size, stride) - 1) * stride + reach - size
    total = symbolic.maximum(total, Extent.of(0), bounds)
    half = total // 2
    return (half, total - half) if upper else (total - half, half)


def _rounded_up(call: Call, window: Window) -> Window:
    """Return the window with the padding that ceil_mode adds; a window that starts in it doesn't count."""
    room = window.padded - window.reach
    count = symbolic.ceil_divide(room, window.stride) + 1
    start, end = (count - 1) * window.stride, window.before + window.size
    if call.builder.bounds.at_least(start, end):
        count = count - 1
    elif not call.builder.bounds.at_least(end, start + 1):
        call.fail("attribute 'ceil_mode' = 1 needs spatial sizes that don't depend on dimensions")
    extra = (count - 1) * window.stride + window.reach - window.padded
    extra = symbolic.maximum(extra, Extent.of(0), call.builder.bounds)
    return Window(
        window.kernel, window.stride, window.dilation, window.before, window.after, window.size, extra
    )


def pad(b: Builder, x: Value, windows: tuple[Window, ...], fill: float) -> Value:
    """Return `x` (…, spatial axes) padded as its windows ask, or as it is where they don't."""
    if all(window.padded == window.size for window in windows):
        return x
    leading = x.shape[: x.rank - len(windows)]
    shape = (*leading, *(window.padded for window in windows))
    strides = contiguous_strides(shape)
    offset = Extent.of(0)
    for window, stride in zip(windows, strides[len(leading) :], strict=True):
        offset = offset + window.before * stride
    move = Move(x, x.shape, contiguous_strides(x.shape), Extent.of(0), strides, offset)
    return b.raster(x.type, shape, [move], fill=fill)


def box(windows: tuple[Window, ...], strides: Shape) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
    """Return (sizes, strides) of positions inside windows, and of the windows themselves."""
    kernel = tuple(Extent.of(window.kernel) for window in windows)
    inside = tuple(stride * window.dilation for window, stride in zip(windows, strides, strict=True))
    steps = tuple(stride * window.stride for window, stride in zip(windows, strides, strict=True))
    return (kernel, inside), (tuple(window.count for window in windows), steps)
