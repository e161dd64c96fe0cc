"""Random small plans against a naive evaluation, element by element, of what the protocol says."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.runtime.codec import decode, encode
from libs.runtime.extents import evaluate
from libs.runtime.plan import Compute, Plan, Raster, View
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder

SCALAR: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
    "neg": lambda a: -a,
    "abs": abs,
}
REDUCE: dict[str, Callable[[list[float]], float]] = {
    "reduce_sum": sum,
    "reduce_max": max,
    "reduce_min": min,
    "reduce_prod": math.prod,
}


class _Naive:
    """Evaluates a plan of integers-as-floats with dictionaries and loops."""

    def __init__(self, plan: Plan, sizes: Sequence[int]) -> None:
        self.plan = plan
        self.values = evaluate(plan.extents, sizes)
        self.memory: dict[int, list[float]] = {
            index: np.frombuffer(tensor.constant, "<f4").tolist()
            for index, tensor in enumerate(plan.tensors)
            if tensor.constant is not None
        }

    def shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(self.values[extent] for extent in self.plan.tensors[tensor].shape)

    def read(self, view: View, index: tuple[int, ...]) -> float:
        strides = [self.values[axis.stride] for axis in view.axes]
        place = self.values[view.offset] + sum(i * s for i, s in zip(index, strides, strict=True))
        assert place >= 0
        return self.memory[view.tensor][place]

    def sizes(self, view: View) -> tuple[int, ...]:
        return tuple(self.values[axis.size] for axis in view.axes)

    def run(self) -> None:
        for step in self.plan.steps:
            if isinstance(step.kind, Compute):
                self.compute(step.kind)
            else:
                self.raster(step.kind)

    def compute(self, step: Compute) -> None:
        output = step.outputs[0]
        result = []
        for index in itertools.product(*map(range, self.shape(output))):
            if step.operator in SCALAR:
                result.append(SCALAR[step.operator](*(self.read(view, index) for view in step.inputs)))
            elif step.operator in REDUCE:
                result.append(REDUCE[step.operator](self.reduced(step, index)))
            else:
                left, right = step.inputs
                depth = self.sizes(left)[-1]
                (*lead, i, j) = index
                pairs = (
                    (self.read(left, (*lead, i, k)), self.read(right, (*lead, k, j))) for k in range(depth)
                )
                result.append(sum(a * b for a, b in pairs))
        self.memory[output] = result

    def reduced(self, step: Compute, index: tuple[int, ...]) -> list[float]:
        sizes = self.sizes(step.inputs[0])
        places = []
        for full in itertools.product(*map(range, sizes)):
            if tuple(i for axis, i in enumerate(full) if axis not in step.axes) == index:
                places.append(full)
        return [self.read(step.inputs[0], place) for place in places]

    def raster(self, step: Raster) -> None:
        fill = float(np.frombuffer(step.fill, "<f4")[0]) if step.fill else math.nan
        target = [fill] * math.prod(self.shape(step.output))
        for region in step.regions:
            for index in itertools.product(*map(range, self.sizes(region.source))):
                strides = [self.values[stride] for stride in region.destination_strides]
                place = self.values[region.destination_offset]
                place += sum(i * s for i, s in zip(index, strides, strict=True))
                target[place] = self.read(region.source, index)
        self.memory[step.output] = target


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    """Steps over tensors of the shape [batch, n, m], with turned, repeated and reversed views."""
    plan = PlanBuilder()
    batch = plan.dimension("batch", 1, 5)
    n, m = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = [batch, n, m]
    full = [plan.input("x", shape), plan.input("w", shape)]
    constant = plan.constant(np.arange(n * m, dtype=np.float32).reshape(n, m) - 2)

    def operand() -> int | View:
        tensor = draw(st.sampled_from(full))
        match draw(st.sampled_from(["whole", "constant", "reversed", "first"])):
            case "constant":
                return plan.broadcast(constant, shape)
            case "reversed":
                return plan.view(tensor, shape, [n * m, m, -1], m - 1)
            case "first":
                return plan.view(tensor, shape, [n * m, 0, 1])
        return tensor

    for _ in range(draw(st.integers(1, 6))):
        match draw(st.sampled_from(["scalar", "reduce", "raster", "matmul"])):
            case "scalar":
                name = draw(st.sampled_from(sorted(SCALAR)))
                count = 1 if name in ("neg", "abs") else 2
                full.append(plan.compute(name, [operand() for _ in range(count)], shape))
            case "reduce":
                name = draw(st.sampled_from(sorted(REDUCE)))
                axes = draw(st.sampled_from([[0], [1], [2], [1, 2], [2, 1]]))
                kept = [size for axis, size in enumerate(shape) if axis not in axes]
                reduced = plan.compute(name, [operand()], kept, axes=axes)
                strides = iter(plan.strides(kept))
                spread = [0 if axis in axes else next(strides) for axis in range(3)]
                full.append(
                    plan.compute(
                        "min", [plan.view(reduced, shape, spread), plan.broadcast(constant, shape)], shape
                    )
                )
            case "raster":
                moves = [plan.region(operand(), [n * m, m, -1], m - 1)]
                part = plan.view(draw(st.sampled_from(full)), [n], [m])
                moves.append(plan.region(part, [m], draw(st.integers(0, m - 1))))
                full.append(plan.raster(moves, shape, fill=draw(st.sampled_from([None, 3.0]))))
            case "matmul":
                other = plan.view(draw(st.sampled_from(full)), [batch, m, m], [0, 0, 1])
                product = plan.compute("matmul", [operand(), other], shape)
                full.append(plan.compute("max", [product, plan.broadcast(constant, shape)], shape))
    for index, tensor in enumerate(full):
        plan.output(f"y{index}", tensor)
    return plan.build()


@settings(max_examples=150, deadline=None)
@given(_plans(), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 100))
def test_random_plans_give_what_a_naive_evaluation_gives(plan: Plan, batches: list[int], seed: int) -> None:
    program = Program(decode(encode(plan)))
    rng = np.random.default_rng(seed)
    for batch in batches:
        naive = _Naive(plan, [batch])
        inputs = {}
        for port in plan.inputs:
            inputs[port.name] = rng.integers(-2, 3, naive.shape(port.tensor)).astype(np.float32)
            naive.memory[port.tensor] = inputs[port.name].ravel().tolist()
        naive.run()
        result = program.run(inputs)
        for port in plan.outputs:
            expected = np.array(naive.memory[port.tensor], np.float64).reshape(naive.shape(port.tensor))
            np.testing.assert_allclose(result[port.name], expected, rtol=1e-4)
