"""Builds tiny plans: `PlanBuilder` places every tensor at a place of its own.

plan = PlanBuilder()
batch = plan.dimension("batch")
x = plan.input("x", [batch, 4])
w = plan.constant([1.0, 2.0, 3.0, 4.0])
plan.output("y", plan.compute("mul", [x, plan.broadcast(w, [batch, 4])], [batch, 4]))
Program(plan.build()).run({"x": [[1, 1, 1, 1]]})   # y is [[1, 2, 3, 4]]
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from libs.runtime.elements import ITEM_BYTES
from libs.runtime.layout import ALIGNMENT
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import (
    Axis,
    Buffer,
    Compute,
    DataType,
    Dimension,
    Extent,
    Operation,
    Placement,
    Plan,
    Port,
    Raster,
    Region,
    Step,
    Tensor,
    View,
)

DIGEST = "sha256:" + "0" * 64


class Size(int):
    """Index of an extent, where a plain int is a constant size."""


Length = int | Size


class PlanBuilder:
    """Collects the parts of a plan; methods return the indexes of tensors."""

    def __init__(self) -> None:
        self._dimensions: list[Dimension] = []
        self._extents: list[Extent] = []
        self._tensors: list[Tensor] = []
        self._shapes: list[tuple[Length, ...]] = []
        self._inputs: list[Port] = []
        self._outputs: list[Port] = []
        self._steps: list[Step] = []
        self._end: Length = 0

    def extent(self, operation: Operation, left: int = 0, right: int = 0, value: int = 0) -> Size:
        """Add an extent as it is."""
        self._extents.append(Extent(operation, value, left, right))
        return Size(len(self._extents) - 1)

    def size(self, length: Length) -> Size:
        """Return the extent of a length, added if it is a plain int."""
        return length if isinstance(length, Size) else self.extent(Operation.CONSTANT, value=length)

    def times(self, left: Length, right: Length) -> Length:
        """Return a product."""
        if not isinstance(left, Size) and not isinstance(right, Size):
            return left * right
        return self.extent(Operation.MULTIPLY, self.size(left), self.size(right))

    def plus(self, left: Length, right: Length) -> Length:
        """Return a sum."""
        if not isinstance(left, Size) and not isinstance(right, Size):
            return left + right
        return self.extent(Operation.ADD, self.size(left), self.size(right))

    def dimension(self, name: str, minimum: int = 1, maximum: int = 64) -> Size:
        """Add a dimension and return its size."""
        self._dimensions.append(Dimension(name, minimum, maximum))
        return self.extent(Operation.DIMENSION, len(self._dimensions) - 1)

    def tensor(self, shape: Sequence[Length], type_: DataType = DataType.FLOAT32) -> int:
        """Add a tensor behind those before it."""
        place = Placement(0, self.size(self._end))
        lengths = tuple(shape)
        self._tensors.append(Tensor(type_, tuple(self.size(length) for length in lengths), placement=place))
        self._shapes.append(lengths)
        size: Length = ITEM_BYTES[type_]
        for length in lengths:
            size = self.times(size, length)
        if isinstance(size, Size):
            up = self.extent(Operation.ADD, size, self.size(ALIGNMENT - 1))
            lines = self.extent(Operation.FLOOR_DIVIDE, up, self.size(ALIGNMENT))
            size = self.times(lines, ALIGNMENT)
        else:
            size = -(-size // ALIGNMENT) * ALIGNMENT
        self._end = self.plus(self._end, size)
        return len(self._tensors) - 1

    def constant(self, values: npt.ArrayLike, type_: DataType = DataType.FLOAT32) -> int:
        """Add a constant."""
        array = np.ascontiguousarray(np.asarray(values, DTYPES[type_]))
        shape = tuple(self.size(length) for length in np.shape(values))
        self._tensors.append(Tensor(type_, shape, constant=array.tobytes()))
        self._shapes.append(tuple(np.shape(values)))
        return len(self._tensors) - 1

    def input(self, name: str, shape: Sequence[Length], type_: DataType = DataType.FLOAT32) -> int:
        """Add an input."""
        tensor = self.tensor(shape, type_)
        self._inputs.append(Port(name, tensor))
        return tensor

    def output(self, name: str, tensor: int) -> None:
        """Make a tensor an output."""
        self._outputs.append(Port(name, tensor))

    def view(
        self, tensor: int, sizes: Sequence[Length], strides: Sequence[Length], offset: Length = 0
    ) -> View:
        """Return any view of a tensor."""
        axes = tuple(Axis(self.size(n), self.size(s)) for n, s in zip(sizes, strides, strict=True))
        return View(tensor, self.size(offset), axes)

    def strides(self, shape: Sequence[Length]) -> list[Length]:
        """Return the strides of a dense array."""
        strides: list[Length] = []
        step: Length = 1
        for length in reversed(shape):
            strides.insert(0, step)
            step = self.times(step, length)
        return strides

    def whole(self, tensor: int) -> View:
        """Return the view of a tensor as it is."""
        shape = self._shapes[tensor]
        return self.view(tensor, shape, self.strides(shape))

    def broadcast(self, tensor: int, shape: Sequence[Length]) -> View:
        """Return the view that repeats a tensor along new outer axes, and where its own size is 1."""
        own = self._shapes[tensor]
        strides: list[Length] = [0] * (len(shape) - len(own))
        pairs = zip(own, self.strides(own), strict=True)
        strides += [0 if not isinstance(n, Size) and n == 1 else s for n, s in pairs]
        return self.view(tensor, shape, strides)

    def compute(
        self,
        operator: str,
        inputs: Sequence[int | View],
        shape: Sequence[Length],
        *,
        axes: Sequence[int] = (),
        type_: DataType | None = None,
        origin: str = "",
    ) -> int:
        """Add a step with an atomic operator; return its output."""
        views = tuple(item if isinstance(item, View) else self.whole(item) for item in inputs)
        type_ = type_ or self._tensors[views[0].tensor].type
        output = self.tensor(shape, type_)
        self._step(Compute(operator, views, (output,), tuple(axes)), origin)
        return output

    def region(self, source: int | View, strides: Sequence[Length], offset: Length = 0) -> Region:
        """Return a region that moves a source to `offset + Σ ik·stride_k`."""
        view = source if isinstance(source, View) else self.whole(source)
        return Region(view, self.size(offset), tuple(self.size(stride) for stride in strides))

    def raster(
        self,
        regions: Sequence[Region],
        shape: Sequence[Length],
        type_: DataType = DataType.FLOAT32,
        *,
        fill: float | None = None,
        origin: str = "",
    ) -> int:
        """Add a step that moves data; return its output."""
        output = self.tensor(shape, type_)
        element = b"" if fill is None else np.asarray(fill, DTYPES[type_]).tobytes()
        self._step(Raster(output, tuple(regions), element), origin)
        return output

    def build(self) -> Plan:
        """Return the plan of what was added."""
        extents, whole = list(self._extents), self._end
        if not isinstance(whole, Size):
            extents.append(Extent(Operation.CONSTANT, whole))
            whole = len(extents) - 1
        return Plan(
            model_digest=DIGEST,
            producer="libs.runtime.testing",
            dimensions=tuple(self._dimensions),
            extents=tuple(extents),
            tensors=tuple(self._tensors),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            buffers=(Buffer(whole),),
            steps=tuple(self._steps),
        )

    def _step(self, kind: Compute | Raster, origin: str) -> None:
        zero = self.size(0)
        self._steps.append(Step(kind, zero, zero, origin))


def identity_plan() -> Plan:
    """Return the plan that gives back its one float: a no-op."""
    builder = PlanBuilder()
    builder.output("y", builder.input("x", [1]))
    return builder.build()


def linear_plan(weights: npt.ArrayLike, bias: float = 0.0) -> Plan:
    """Return the plan of a logistic regression: "x" [batch, n] to "probability" [batch]."""
    builder = PlanBuilder()
    column = np.asarray(weights, np.float32).reshape(-1, 1)
    batch = builder.dimension("batch", 1, 4096)
    x = builder.input("x", [batch, len(column)])
    product = builder.compute("matmul", [x, builder.constant(column)], [batch, 1])
    flat = builder.view(product, [batch], [1])
    scalar = builder.broadcast(builder.constant(bias), [batch])
    one = builder.broadcast(builder.constant(1.0), [batch])
    logit = builder.compute("add", [flat, scalar], [batch])
    power = builder.compute("exp", [builder.compute("neg", [logit], [batch])], [batch])
    total = builder.compute("add", [power, one], [batch])
    builder.output("probability", builder.compute("div", [one, total], [batch]))
    return builder.build()
