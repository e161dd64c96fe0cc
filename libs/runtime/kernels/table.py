"""Which kernel does what."""

from libs.runtime.kernels import elementwise, gather, matmul, reduce, scan, scatter, sort
from libs.runtime.kernels.fault import Array, Kernel
from libs.runtime.layout import ComputeLayout


def build_compute(step: ComputeLayout, inputs: tuple[Array, ...], output: Array) -> Kernel:
    """Return the kernel of an atomic operator; `output` is dense."""
    match step.atomic.kind:
        case "elementwise":
            return elementwise.build(step.atomic.name, inputs, output)
        case "reduce":
            return reduce.build(step.atomic.name, inputs[0], output, step.axes)
        case "matmul":
            return matmul.build(inputs[0], inputs[1], output)
        case "gather":
            return gather.build(inputs[0], inputs[1], output, step.axes[0])
        case "scan":
            return scan.build(inputs[0], output, step.axes[0])
        case "sort":
            return sort.build(inputs[0], output, step.axes[0])
        case "scatter":
            return scatter.build(step.atomic.name, inputs[0], inputs[1], inputs[2], output)
