"""Compositions as messages, and back; parts are the caller's to convert."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from isthmus.engine.v1 import plan_pb2 as pb
from libs.runtime.faults import bad_plan
from libs.runtime.plan import (
    Action,
    Block,
    Branch,
    Composition,
    DataType,
    Dimension,
    Host,
    Loop,
    NamedRegister,
    OptionalType,
    Plan,
    Register,
    RegisterType,
    Run,
    SequenceType,
    SizeSource,
    TensorType,
)

MOST_LEVELS = 3
"""Of sequences and optionals in one another."""
_MOST_AXES = 8
_MOST_DIMENSIONS = 64
_MOST_PORTS = 1_024
"""Of a part or a host operator."""
_MOST_REGISTERS = 65_536
"""Of what a block is given or gives."""
_MOST_WORDS = 16
"""Numbers or texts of a host operator."""

T = TypeVar("T")


def composition_message(
    composition: Composition, dimensions: Sequence[Dimension], part: Callable[[Plan], pb.Plan]
) -> pb.Composition:
    """Return the message of a composition; raises ValueError for a number that the format can't hold."""
    names = {dimension.name: index for index, dimension in enumerate(dimensions)}
    return pb.Composition(
        parts=[part(each) for each in composition.parts],
        registers=[_register_message(register, names) for register in composition.registers],
        inputs=[pb.NamedRegister(name=each.name, register=each.register) for each in composition.inputs],
        outputs=[pb.NamedRegister(name=each.name, register=each.register) for each in composition.outputs],
        blocks=[
            pb.Block(
                parameters=block.parameters,
                actions=[_action_message(action) for action in block.actions],
                results=block.results,
            )
            for block in composition.blocks
        ],
    )


def _register_message(register: Register, names: dict[str, int]) -> pb.Register:
    message = pb.Register(type=_type_message(register.type, names), strings=register.strings)
    if register.constant is not None:
        message.constant = register.constant
    return message


def _type_message(type_: RegisterType, names: dict[str, int]) -> pb.RegisterType:
    match type_:
        case TensorType():
            shape = type_.shape or ()
            sizes = [_size_message(size, names) for size in shape]
            tensor = pb.TensorType(
                type=pb.DataType.ValueType(type_.type), ranked=type_.shape is not None, shape=sizes
            )
            return pb.RegisterType(tensor=tensor)
        case SequenceType():
            return pb.RegisterType(sequence=_type_message(type_.element, names))
        case OptionalType():
            return pb.RegisterType(optional=_type_message(type_.element, names))


def _size_message(size: int | str | None, names: dict[str, int]) -> pb.RegisterSize:
    if size is None:
        return pb.RegisterSize()
    return pb.RegisterSize(fixed=size) if isinstance(size, int) else pb.RegisterSize(dimension=names[size])


def _action_message(action: Action) -> pb.Action:
    message = pb.Action(origin=action.origin)
    kind = action.kind
    match kind:
        case Run():
            sources = [_source_message(source) for source in kind.dimensions]
            run = pb.Run(part=kind.part, inputs=kind.inputs, outputs=kind.outputs, dimensions=sources)
            message.run.CopyFrom(run)
        case Branch():
            branch = pb.Branch(
                condition=kind.condition,
                then_block=kind.then_block,
                else_block=kind.else_block,
                outputs=kind.outputs,
            )
            message.branch.CopyFrom(branch)
        case Loop():
            loop = pb.Loop(body=kind.body, initial=kind.initial, outputs=kind.outputs)
            if kind.trip_count is not None:
                loop.trip_count = kind.trip_count
            if kind.condition is not None:
                loop.condition = kind.condition
            message.loop.CopyFrom(loop)
        case Host():
            host = pb.Host(
                operator=kind.operator,
                inputs=kind.inputs,
                outputs=kind.outputs,
                integers=kind.integers,
                texts=kind.texts,
            )
            message.host.CopyFrom(host)
    return message


def _source_message(source: SizeSource) -> pb.SizeSource:
    if source.axis is not None:
        return pb.SizeSource(register=source.register, axis=source.axis)
    return pb.SizeSource(register=source.register, element=source.element or 0)


def read_composition(
    message: pb.Composition, dimensions: Sequence[Dimension], part: Callable[[pb.Plan], Plan]
) -> Composition:
    """Return what a message holds; raises Invalid (BAD_PLAN) for kinds that aren't known here."""
    if any(each.HasField("composition") for each in message.parts):
        raise bad_plan("composition", "has a part that is a composition itself")
    return Composition(
        parts=tuple(part(each) for each in message.parts),
        registers=tuple(
            _register(each, dimensions, f"registers[{index}]") for index, each in enumerate(message.registers)
        ),
        inputs=tuple(NamedRegister(each.name, each.register) for each in message.inputs),
        outputs=tuple(NamedRegister(each.name, each.register) for each in message.outputs),
        blocks=tuple(_block(block, f"blocks[{index}]") for index, block in enumerate(message.blocks)),
    )


def _register(message: pb.Register, dimensions: Sequence[Dimension], where: str) -> Register:
    constant = message.constant if message.HasField("constant") else None
    return Register(_type(message.type, dimensions, where, 0), constant, tuple(message.strings))


def _type(message: pb.RegisterType, dimensions: Sequence[Dimension], where: str, level: int) -> RegisterType:
    if level > MOST_LEVELS:
        raise bad_plan(where, f"is of a type more than {MOST_LEVELS} deep")
    match message.WhichOneof("kind"):
        case "tensor":
            return _tensor_type(message.tensor, dimensions, where)
        case "sequence":
            return SequenceType(_type(message.sequence, dimensions, where, level + 1))
        case "optional":
            return OptionalType(_type(message.optional, dimensions, where, level + 1))
    raise bad_plan(where, "is of a kind of type that this runtime doesn't know: update it")


def _tensor_type(message: pb.TensorType, dimensions: Sequence[Dimension], where: str) -> TensorType:
    try:
        type_ = DataType(message.type)
    except ValueError:
        text = f"has elements of type {message.type}, which this runtime doesn't know: update it"
        raise bad_plan(where, text) from None
    if not message.ranked:
        return TensorType(type_)
    _few(message.shape, _MOST_AXES, f"{where}.shape")
    shape: list[int | str | None] = []
    for size in message.shape:
        match size.WhichOneof("kind"):
            case "fixed":
                shape.append(size.fixed)
            case "dimension":
                if size.dimension >= len(dimensions):
                    raise bad_plan(where, f"has dimension {size.dimension}; there are {len(dimensions)}")
                shape.append(dimensions[size.dimension].name)
            case _:
                shape.append(None)
    return TensorType(type_, tuple(shape))


def _block(message: pb.Block, where: str) -> Block:
    return Block(
        _few(message.parameters, _MOST_REGISTERS, f"{where}.parameters"),
        tuple(_action(action, f"{where}.actions[{number}]") for number, action in enumerate(message.actions)),
        _few(message.results, _MOST_REGISTERS, f"{where}.results"),
    )


def _few(values: Sequence[T], most: int, where: str) -> tuple[T, ...]:
    """Return a tuple of what was counted before anything was made of it."""
    if len(values) > most:
        raise bad_plan(where, f"has {len(values)} entries, more than {most}")
    return tuple(values)


def _action(message: pb.Action, where: str) -> Action:
    kind: Run | Branch | Loop | Host
    match message.WhichOneof("kind"):
        case "run":
            run = message.run
            given = _few(run.dimensions, _MOST_DIMENSIONS, f"{where}.dimensions")
            sources = tuple(_source(source, where) for source in given)
            inputs = _few(run.inputs, _MOST_PORTS, f"{where}.inputs")
            kind = Run(run.part, inputs, _few(run.outputs, _MOST_PORTS, f"{where}.outputs"), sources)
        case "branch":
            branch = message.branch
            outputs = _few(branch.outputs, _MOST_REGISTERS, f"{where}.outputs")
            kind = Branch(branch.condition, branch.then_block, branch.else_block, outputs)
        case "loop":
            loop = message.loop
            kind = Loop(
                loop.trip_count if loop.HasField("trip_count") else None,
                loop.condition if loop.HasField("condition") else None,
                loop.body,
                _few(loop.initial, _MOST_REGISTERS, f"{where}.initial"),
                _few(loop.outputs, _MOST_REGISTERS, f"{where}.outputs"),
            )
        case "host":
            host = message.host
            kind = Host(
                host.operator,
                _few(host.inputs, _MOST_PORTS, f"{where}.inputs"),
                _few(host.outputs, _MOST_PORTS, f"{where}.outputs"),
                _few(host.integers, _MOST_WORDS, f"{where}.integers"),
                _few(host.texts, _MOST_WORDS, f"{where}.texts"),
            )
        case _:
            raise bad_plan(where, "is of a kind that this runtime doesn't know: update it")
    return Action(kind, message.origin)


def _source(message: pb.SizeSource, where: str) -> SizeSource:
    match message.WhichOneof("kind"):
        case "axis":
            return SizeSource(message.register, axis=message.axis)
        case "element":
            return SizeSource(message.register, element=message.element)
    raise bad_plan(where, "takes a size from where this runtime doesn't know: update it")
