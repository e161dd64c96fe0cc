"""Plans as bytes (`isthmus.engine.v1.Plan`) and back.

`decode` gives whatever was written, within bounds; `libs.runtime.check` says whether it is sound.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import DecodeError

from isthmus.engine.v1 import plan_pb2 as pb
from libs.common.errors import Invalid
from libs.runtime.codec_composition import composition_message, read_composition
from libs.runtime.faults import PLAN_VERSION, bad_plan
from libs.runtime.plan import (
    MAJOR,
    MINOR,
    Axis,
    Buffer,
    Compute,
    DataType,
    Dimension,
    Equality,
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
from libs.runtime.wire import MAX_REGIONS, MAX_REPEATED, check_bounds, check_is_plan

T = TypeVar("T")


def encode(plan: Plan) -> bytes:
    """Return the bytes of a plan; equal plans give equal bytes.

    Raises ValueError for a number that the format can't hold (a negative index, say): a fault of the caller.
    """
    message = _message(plan)
    message.major, message.minor = MAJOR, MINOR
    message.model_digest, message.producer = plan.model_digest, plan.producer
    if plan.composition is not None:
        message.composition.CopyFrom(composition_message(plan.composition, plan.dimensions, _message))
    return message.SerializeToString(deterministic=True)


def _message(plan: Plan) -> pb.Plan:
    """Return what a part has, too."""
    return pb.Plan(
        dimensions=[pb.Dimension(name=d.name, minimum=d.minimum, maximum=d.maximum) for d in plan.dimensions],
        extents=[
            pb.Extent(
                operation=pb.Extent.Operation.ValueType(e.operation),
                value=e.value,
                left=e.left,
                right=e.right,
            )
            for e in plan.extents
        ],
        tensors=[_tensor_message(tensor) for tensor in plan.tensors],
        inputs=[pb.Port(name=port.name, tensor=port.tensor) for port in plan.inputs],
        outputs=[pb.Port(name=port.name, tensor=port.tensor) for port in plan.outputs],
        buffers=[pb.Buffer(size_bytes=buffer.size_bytes) for buffer in plan.buffers],
        steps=[_step_message(step) for step in plan.steps],
        equalities=[
            pb.Equality(left=each.left, right=each.right, origin=each.origin) for each in plan.equalities
        ],
    )


def decode(data: bytes) -> Plan:
    """Return the plan that `data` holds.

    Raises Invalid: PLAN_VERSION for another major version; BAD_PLAN for bytes that are no plan, are beyond
    the bounds of `libs.runtime.wire`, or hold a kind of step, type or operation that isn't known here.
    """
    check_is_plan(data)
    check_bounds(data)
    message = pb.Plan()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise bad_plan("it", "can't be read: it is no plan, or it is damaged or cut off") from None
    if message.major != MAJOR:
        text = f"plan is of format {message.major}.{message.minor}; this runtime reads format {MAJOR}"
        remedy = "update the runtime" if message.major > MAJOR else "make the plan again with the engine"
        raise Invalid(f"{text}: {remedy}", reason=PLAN_VERSION)
    parts = (message, *message.composition.parts)
    regions = sum(len(step.raster.regions) for part in parts for step in part.steps)
    if regions > MAX_REGIONS:
        raise bad_plan("it", f"has {regions} regions, more than {MAX_REGIONS}")
    plan = _plan(message)
    if message.HasField("composition"):
        return replace(plan, composition=read_composition(message.composition, plan.dimensions, _plan))
    return plan


def _plan(message: pb.Plan) -> Plan:
    return Plan(
        model_digest=message.model_digest,
        producer=message.producer,
        dimensions=tuple(Dimension(d.name, d.minimum, d.maximum) for d in message.dimensions),
        extents=tuple(_extent(extent, index) for index, extent in enumerate(message.extents)),
        tensors=tuple(_tensor(tensor, index) for index, tensor in enumerate(message.tensors)),
        inputs=tuple(Port(port.name, port.tensor) for port in message.inputs),
        outputs=tuple(Port(port.name, port.tensor) for port in message.outputs),
        buffers=tuple(Buffer(buffer.size_bytes) for buffer in message.buffers),
        steps=tuple(_step(step, index) for index, step in enumerate(message.steps)),
        equalities=tuple(Equality(each.left, each.right, each.origin) for each in message.equalities),
    )


def _tensor_message(tensor: Tensor) -> pb.Tensor:
    message = pb.Tensor(type=pb.DataType.ValueType(tensor.type), shape=tensor.shape)
    if tensor.constant is not None:
        message.constant = tensor.constant
    if tensor.placement is not None:
        place = tensor.placement
        message.placement.CopyFrom(pb.Placement(buffer=place.buffer, offset_bytes=place.offset_bytes))
    return message


def _view_message(view: View) -> pb.View:
    axes = [pb.Axis(size=axis.size, stride=axis.stride) for axis in view.axes]
    return pb.View(tensor=view.tensor, offset=view.offset, axes=axes)


def _step_message(step: Step) -> pb.Step:
    message = pb.Step(calculations=step.calculations, moved_bytes=step.moved_bytes, origin=step.origin)
    kind = step.kind
    if isinstance(kind, Compute):
        inputs = [_view_message(view) for view in kind.inputs]
        compute = pb.Compute(operator=kind.operator, inputs=inputs, outputs=kind.outputs, axes=kind.axes)
        message.compute.CopyFrom(compute)
    else:
        regions = [
            pb.Region(
                source=_view_message(region.source),
                destination_offset=region.destination_offset,
                destination_strides=region.destination_strides,
            )
            for region in kind.regions
        ]
        message.raster.CopyFrom(pb.Raster(output=kind.output, regions=regions, fill=kind.fill))
    return message


def _extent(message: pb.Extent, index: int) -> Extent:
    try:
        operation = Operation(message.operation)
    except ValueError:
        text = f"is {message.operation}, which this runtime doesn't know: update it"
        raise bad_plan(f"extents[{index}].operation", text) from None
    return Extent(operation, message.value, message.left, message.right)


def _tensor(message: pb.Tensor, index: int) -> Tensor:
    try:
        type_ = DataType(message.type)
    except ValueError:
        text = f"is {message.type}, which this runtime doesn't know: update it"
        raise bad_plan(f"tensors[{index}].type", text) from None
    shape = _few(message.shape, f"tensors[{index}].shape")
    storage = message.WhichOneof("storage")
    if storage == "constant":
        return Tensor(type_, shape, constant=message.constant)
    if storage == "placement":
        place = Placement(message.placement.buffer, message.placement.offset_bytes)
        return Tensor(type_, shape, placement=place)
    text = "is neither a constant nor placed in a buffer; a newer runtime may be needed"
    raise bad_plan(f"tensors[{index}]", text)


def _few(values: Sequence[T], where: str) -> tuple[T, ...]:
    """Return a tuple of what was counted before anything was made of it."""
    if len(values) > MAX_REPEATED:
        raise bad_plan(where, f"has {len(values)} entries, more than {MAX_REPEATED}")
    return tuple(values)


def _view(message: pb.View, where: str) -> View:
    axes = _few(message.axes, f"{where}.axes")
    return View(message.tensor, message.offset, tuple(Axis(axis.size, axis.stride) for axis in axes))


def _region(message: pb.Region, where: str) -> Region:
    strides = _few(message.destination_strides, f"{where}.destination_strides")
    return Region(_view(message.source, f"{where}.source"), message.destination_offset, strides)


def _step(message: pb.Step, index: int) -> Step:
    where = f"steps[{index}]"
    kind: Compute | Raster
    match message.WhichOneof("kind"):
        case "compute":
            compute = message.compute
            views = _few(compute.inputs, f"{where}.inputs")
            inputs = tuple(_view(view, f"{where}.inputs[{number}]") for number, view in enumerate(views))
            outputs = _few(compute.outputs, f"{where}.outputs")
            kind = Compute(compute.operator, inputs, outputs, _few(compute.axes, f"{where}.axes"))
        case "raster":
            regions = tuple(
                _region(region, f"{where}.regions[{number}]")
                for number, region in enumerate(message.raster.regions)
            )
            kind = Raster(message.raster.output, regions, message.raster.fill)
        case _:
            raise bad_plan(where, "is of a kind that this runtime doesn't know: update it")
    return Step(kind, message.calculations, message.moved_bytes, message.origin)
