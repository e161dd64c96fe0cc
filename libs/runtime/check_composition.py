"""Says whether a composition is sound, as far as no data are needed. Needs neither numpy nor protobuf."""

import math
from collections.abc import Callable, Sequence

from libs.runtime.check_elements import check_elements, is_text
from libs.runtime.check_host import MAX_RANK, check_host
from libs.runtime.elements import ITEM_BYTES
from libs.runtime.faults import bad_plan
from libs.runtime.plan import (
    Action,
    Block,
    Branch,
    Composition,
    DataType,
    Host,
    Loop,
    Plan,
    Register,
    RegisterType,
    Run,
    TensorType,
)
from libs.runtime.register_types import fits, type_text

DEEPEST_BLOCK = 32
MAX_ACTIONS = 65_536
_MOST_ELEMENTS = 2**40
"""Of a tensor whose sizes are fixed."""
_COUNTS = (("parts", 4_096), ("registers", 65_536), ("inputs", 1_024), ("outputs", 1_024), ("blocks", 1_024))


def check_composition(
    composition: Composition, dimensions: Sequence[str], check_part: Callable[[Plan, str], None]
) -> None:
    """Raise Invalid (BAD_PLAN), naming the place, for the first rule that a composition breaks.

    Checked: parts by `check_part`; that each register is written once, and read after that within the
    blocks that see it; that blocks make a tree; types of registers against the ports of parts and what
    operators take.
    """
    for name, most in _COUNTS:
        count = len(getattr(composition, name))
        if count > most:
            raise bad_plan(name, f"has {count} entries, more than {most}")
    if sum(len(block.actions) for block in composition.blocks) > MAX_ACTIONS:
        raise bad_plan("blocks", f"have more than {MAX_ACTIONS} actions")
    for index, part in enumerate(composition.parts):
        check_part(part, f"parts[{index}]")
    _Checker(composition, dimensions).check()


class _Checker:
    def __init__(self, composition: Composition, dimensions: Sequence[str]) -> None:
        self._composition = composition
        self._dimensions = frozenset(dimensions)
        self._written: set[int] = set()
        self._seen: list[set[int]] = [set()]
        """Registers that may be read, by block, from the outermost."""
        self._run: set[int] = set()
        """Blocks that something runs."""

    def check(self) -> None:
        composition = self._composition
        for index, register in enumerate(composition.registers):
            self._register(register, f"registers[{index}]")
            if register.constant is not None:
                self._write(index, f"registers[{index}]")
        sized: set[str] = set()
        for index, named in enumerate(composition.inputs):
            self._write(named.register, f"inputs[{index}]")
            type_ = composition.registers[named.register].type
            shape = (type_.shape or ()) if isinstance(type_, TensorType) else ()
            sized.update(size for size in shape if isinstance(size, str))
        for name in self._dimensions - sized:
            raise bad_plan(f"dimension {name!r}", "is the size of no axis of an input")
        for where, ports in (("inputs", composition.inputs), ("outputs", composition.outputs)):
            names = [port.name for port in ports]
            if len(set(names)) != len(names) or not all(names):
                raise bad_plan(where, "have a name twice, or an empty one")
        if not composition.blocks or not composition.outputs:
            raise bad_plan("composition", "has no block, or no outputs: it would compute nothing")
        self._run.add(0)
        self._block(0, 0)
        for index, named in enumerate(composition.outputs):
            self._read(named.register, f"outputs[{index}]")
        if len(self._run) != len(composition.blocks):
            raise bad_plan("blocks", "has one that nothing runs")

    # ---- registers ----
    def _register(self, register: Register, where: str) -> None:
        self._type(register.type, where)
        if register.constant is None:
            if register.strings:
                raise bad_plan(where, "has strings, but is no constant")
            return
        type_ = register.type
        if not isinstance(type_, TensorType):
            raise bad_plan(where, "is a constant, but no tensor")
        sizes = type_.shape or ()
        numbers = [size for size in sizes if isinstance(size, int)]
        if type_.shape is None or len(numbers) != len(sizes):
            raise bad_plan(where, "is a constant whose shape is not fixed")
        count = math.prod(numbers)
        if type_.type is DataType.STRING:
            if not all(map(is_text, register.strings)):
                raise bad_plan(where, "has a string with half of a surrogate pair, which is no character")
            if register.constant or len(register.strings) != count:
                raise bad_plan(
                    where, f"has {len(register.strings)} strings, but its shape {numbers} takes {count}"
                )
        elif register.strings or len(register.constant) != count * ITEM_BYTES[type_.type]:
            raise bad_plan(where, f"has {len(register.constant)} bytes for its shape {numbers}")
        else:
            check_elements(type_.type, register.constant, where)

    def _type(self, type_: RegisterType, where: str) -> None:
        for _ in range(4):
            if isinstance(type_, TensorType):
                break
            type_ = type_.element
        if not isinstance(type_, TensorType):
            raise bad_plan(where, "is of a type that is too deep")
        if type_.shape is not None and len(type_.shape) > MAX_RANK:
            raise bad_plan(where, f"has {len(type_.shape)} axes, more than {MAX_RANK}")
        for size in type_.shape or ():
            if isinstance(size, str) and size not in self._dimensions:
                raise bad_plan(where, f"has size {size!r}, which is no dimension")
        numbers = [size for size in type_.shape or () if isinstance(size, int)]
        # numpy counts the others' elements even where one size is 0.
        if min(numbers, default=0) < 0 or math.prod(max(size, 1) for size in numbers) > _MOST_ELEMENTS:
            raise bad_plan(where, f"has sizes {numbers}, which no tensor has")

    def _write(self, register: int, where: str) -> None:
        self._known(register, where)
        if register in self._written:
            raise bad_plan(where, f"writes register {register}, which is written already")
        self._written.add(register)
        self._seen[-1].add(register)

    def _read(self, register: int, where: str) -> RegisterType:
        self._known(register, where)
        if not any(register in seen for seen in self._seen):
            raise bad_plan(where, f"reads register {register}, which nothing has written that it sees")
        return self._composition.registers[register].type

    def _known(self, register: int, where: str) -> None:
        if not 0 <= register < len(self._composition.registers):
            raise bad_plan(where, f"names register {register}; there are {len(self._composition.registers)}")

    def _tensor(self, register: int, where: str) -> TensorType:
        type_ = self._read(register, where)
        if not isinstance(type_, TensorType):
            raise bad_plan(where, f"reads register {register} as a tensor, which it isn't")
        return type_

    def _single(self, register: int, type_: DataType, where: str) -> None:
        if self._tensor(register, where).type is not type_:
            raise bad_plan(where, f"reads register {register}, which is not of type {type_.name}")

    # ---- blocks ----
    def _block(self, index: int, level: int) -> Block:
        if level > DEEPEST_BLOCK:
            raise bad_plan(f"blocks[{index}]", f"is more than {DEEPEST_BLOCK} deep")
        block = self._composition.blocks[index]
        where = f"blocks[{index}]"
        if index == 0 and (block.parameters):
            raise bad_plan(where, "has parameters, which nothing fills")
        self._seen.append(set())
        for parameter in block.parameters:
            self._write(parameter, f"{where}.parameters")
        for number, action in enumerate(block.actions):
            self._action(action, f"{where}.actions[{number}]", level)
        for result in block.results:
            self._read(result, f"{where}.results")
        if index:
            self._seen.pop()
        return block

    def _inner(self, index: int, where: str, level: int) -> Block:
        if not 0 <= index < len(self._composition.blocks):
            raise bad_plan(where, f"runs block {index}; there are {len(self._composition.blocks)}")
        if index in self._run:
            raise bad_plan(where, f"runs block {index}, which something else runs")
        self._run.add(index)
        return self._block(index, level + 1)

    def _action(self, action: Action, where: str, level: int) -> None:
        kind = action.kind
        where = f"{where} ({action.origin[:200]})" if action.origin else where
        match kind:
            case Run():
                self._run_part(kind, where)
            case Branch():
                self._branch(kind, where, level)
            case Loop():
                self._loop(kind, where, level)
            case Host():
                given = [self._read(register, where) for register in kind.inputs]
                check_host(kind, given, self._types(kind.outputs, where), where)
        for output in kind.outputs:
            self._write(output, where)

    def _run_part(self, run: Run, where: str) -> None:
        composition = self._composition
        if not 0 <= run.part < len(composition.parts):
            raise bad_plan(where, f"runs part {run.part}; there are {len(composition.parts)}")
        part = composition.parts[run.part]
        for what, given, wanted in (
            ("inputs", run.inputs, part.inputs),
            ("outputs", run.outputs, part.outputs),
            ("dimensions", run.dimensions, part.dimensions),
        ):
            if len(given) != len(wanted):
                raise bad_plan(where, f"gives part {run.part} {len(given)} {what}, not {len(wanted)}")
        for register, port in zip(run.inputs, part.inputs, strict=True):
            self._matches(self._tensor(register, where), part, port.tensor, register, where)
        for register, port in zip(run.outputs, part.outputs, strict=True):
            self._known(register, where)
            type_ = composition.registers[register].type
            if not isinstance(type_, TensorType):
                raise bad_plan(where, f"writes a tensor to register {register}, which holds none")
            self._matches(type_, part, port.tensor, register, where)
        for source in run.dimensions:
            type_ = self._tensor(source.register, where)
            if (source.axis is None) == (source.element is None):
                raise bad_plan(where, "takes a size from neither an axis nor an element, or from both")
            if source.element is not None and type_.type is not DataType.INT64:
                raise bad_plan(where, f"takes a size from register {source.register}, which is no INT64")
            if source.axis is not None and type_.shape is not None and source.axis >= len(type_.shape):
                raise bad_plan(where, f"takes a size from axis {source.axis} of {len(type_.shape)}")

    def _matches(self, type_: TensorType, part: Plan, tensor: int, register: int, where: str) -> None:
        wanted = part.tensors[tensor]
        if type_.type is not wanted.type:
            text = f"has register {register} of {type_.type.name} for a tensor of {wanted.type.name}"
            raise bad_plan(where, text)
        if type_.shape is not None and len(type_.shape) != len(wanted.shape):
            text = f"has register {register} of {len(type_.shape)} axes for a tensor of {len(wanted.shape)}"
            raise bad_plan(where, text)

    def _types(self, registers: Sequence[int], where: str) -> list[RegisterType]:
        for register in registers:
            self._known(register, where)
        return [self._composition.registers[register].type for register in registers]

    def _passes(self, sources: Sequence[int], targets: Sequence[int], where: str) -> None:
        """Check that what some registers hold may go into others."""
        types = zip(self._types(sources, where), self._types(targets, where), strict=True)
        for source, target, (given, wanted) in zip(sources, targets, types, strict=True):
            if not fits(given, wanted):
                text = f"{type_text(given)} of register {source} to register {target} of {type_text(wanted)}"
                raise bad_plan(where, f"hands {text}")

    def _branch(self, branch: Branch, where: str, level: int) -> None:
        self._single(branch.condition, DataType.BOOL, where)
        for inner in (branch.then_block, branch.else_block):
            block = self._inner(inner, where, level)
            if block.parameters or len(block.results) != len(branch.outputs):
                raise bad_plan(where, f"runs block {inner}, which has other parameters or results")
            self._passes(block.results, branch.outputs, where)

    def _loop(self, loop: Loop, where: str, level: int) -> None:
        if loop.trip_count is not None:
            self._single(loop.trip_count, DataType.INT64, where)
        if loop.condition is not None:
            self._single(loop.condition, DataType.BOOL, where)
        for register in loop.initial:
            self._read(register, where)
        block = self._inner(loop.body, where, level)
        carried = len(loop.initial)
        if len(block.parameters) != 2 + carried or len(block.results) != 1 + len(loop.outputs):
            raise bad_plan(where, f"runs block {loop.body}, which has other parameters or results")
        if len(loop.outputs) < carried:
            raise bad_plan(where, f"carries {carried} registers, but has {len(loop.outputs)} outputs")
        number, going, *parameters = block.parameters
        for register, type_ in ((number, DataType.INT64), (going, DataType.BOOL)):
            if not fits(self._composition.registers[register].type, TensorType(type_, ())):
                text = f"fills register {register} with a {type_.name}, which it doesn't hold"
                raise bad_plan(where, text)
        condition, *results = block.results
        if not fits(self._composition.registers[condition].type, TensorType(DataType.BOOL)):
            raise bad_plan(where, "has a body whose first result is no BOOL")
        self._passes(loop.initial, parameters, where)
        self._passes(results[:carried], parameters, where)
        self._passes(loop.initial, loop.outputs[:carried], where)
        self._passes(results[:carried], loop.outputs[:carried], where)
        for result, register in zip(results[carried:], loop.outputs[carried:], strict=True):
            self._stacks(result, register, where)

    def _stacks(self, result: int, register: int, where: str) -> None:
        """Check that what rounds give may be put together in a register."""
        each, held = self._types((result, register), where)
        if not isinstance(each, TensorType):
            raise bad_plan(where, f"collects {type_text(each)}, which is no tensor")
        stacked = TensorType(each.type, None if each.shape is None else (None, *each.shape))
        if not fits(stacked, held):
            text = f"collects {type_text(stacked)} into register {register} of {type_text(held)}"
            raise bad_plan(where, text)
