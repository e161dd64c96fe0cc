"""Partition: a program with control flow becomes straight parts, and blocks of actions that run them.

Within a block, each straight instruction goes into the first part that it can be in: after the actions that
give what it reads, and after the part that computes what its sizes depend on. So a block of straight
instructions without data dimensions is one part, and one of k measurements that build on one another is k +
1. What crosses from part to part, or to an action, is in a register; registers are values, by their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from libs.runtime.plan import Action, Block, Branch, Host, Loop, Run, SizeSource
from services.engine.domain.bounds import Bounds
from services.engine.domain.composed import (
    AnyInstruction,
    BlockCode,
    BranchInstruction,
    Composed,
    EqualInstruction,
    HostInstruction,
    LoopInstruction,
    blocks_of,
    read_directly,
    sizes_in,
    written_by,
)
from services.engine.domain.extents import Extent
from services.engine.domain.merge.rewrite import joined_origin, with_views
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    NamedValue,
    Program,
    RasterInstruction,
    ValueType,
)


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A composed program in parts; registers are numbers of its values."""

    composed: Composed
    parts: tuple[Program, ...]
    """Their outputs are named by register, in decimal; their dimensions are in the order of names."""
    blocks: tuple[Block, ...]
    """Block 0 runs."""


def partition(composed: Composed) -> Partitioned:
    """Return the parts and blocks of a composed program, without what nothing needs."""
    return _Partitioner(without_dead_blocks(composed)).partitioned()


def without_dead_blocks(composed: Composed) -> Composed:
    """Return the program without instructions whose results nobody reads; demands on sizes stay."""
    needs = _Needs(composed)
    needs.add(output.value for output in composed.outputs)
    while True:
        before = len(needs.values)
        body = _living(composed.body, needs)
        if len(needs.values) == before:
            return replace(composed, body=body)


class _Needs:
    """Values that are needed, with what sizes and other names of them need."""

    def __init__(self, composed: Composed) -> None:
        self._composed = composed
        self.values: set[int] = set()
        self._dimensions: set[str] = set()

    def add(self, values: Iterator[int] | tuple[int, ...]) -> None:
        for value in values:
            self.values.add(value)
            self.values.add(_base(self._composed, value))

    def add_sizes(self, sizes: Iterator[Extent]) -> None:
        for size in sizes:
            for name in size.dimensions - self._dimensions:
                self._dimensions.add(name)
                source = self._composed.sources.get(name)
                if source is not None:
                    self.add((source.value,))


def _base(composed: Composed, value: int) -> int:
    while value in composed.aliases:
        value = composed.aliases[value]
    return value


def _living(block: BlockCode, needs: _Needs) -> BlockCode:
    kept: list[AnyInstruction] = []
    needs.add(block.results)
    for instruction in reversed(block.instructions):
        if not isinstance(instruction, EqualInstruction) and needs.values.isdisjoint(written_by(instruction)):
            continue
        if isinstance(instruction, BranchInstruction):
            first, second = (_living(inner, needs) for inner in blocks_of(instruction))
            instruction = replace(instruction, then_block=first, else_block=second)
        elif isinstance(instruction, LoopInstruction):
            instruction = replace(instruction, body=_living(instruction.body, needs))
        needs.add(read_directly(instruction))
        needs.add_sizes(sizes_in(instruction, needs._composed.values))
        kept.append(instruction)
    return replace(block, instructions=tuple(reversed(kept)))


@dataclass(slots=True)
class _Level:
    """Straight instructions of a block that go into one part, and the actions after it."""

    straight: list[Instruction] = field(default_factory=list)
    equalities: list[EqualInstruction] = field(default_factory=list)
    actions: list[AnyInstruction] = field(default_factory=list)


class _Partitioner:
    def __init__(self, composed: Composed) -> None:
        self._composed = composed
        self._parts: list[Program] = []
        self._blocks: list[Block] = []
        self._inputs = _dimensions_of_inputs(composed)
        # What is read outside of the part that writes it: known before parts are made.
        self._crossing: set[int] = set()
        self._equal = composed.bounds.equal
        """What is demanded so far, in this block and those around it."""

    def partitioned(self) -> Partitioned:
        self._block(self._composed.body)
        return Partitioned(self._composed, tuple(self._parts), tuple(self._blocks))

    # ---- levels ----
    def _block(self, code: BlockCode) -> int:
        place = len(self._blocks)
        self._blocks.append(Block((), (), ()))
        levels = self._levels(code)
        crossing = self._crossing_of(code, levels)
        actions: list[Action] = []
        outside = self._equal
        for level in levels:
            self._equal = (*self._equal, *((each.left, each.right) for each in level.equalities))
            if level.straight or level.equalities:
                actions.append(self._run(level, crossing))
            actions.extend(self._action(instruction) for instruction in level.actions)
        self._equal = outside
        results = tuple(self._register(value) for value in code.results)
        self._blocks[place] = Block(code.parameters, tuple(actions), results)
        return place

    def _levels(self, code: BlockCode) -> list[_Level]:
        levels: list[_Level] = []
        part_of: dict[int, int] = {}
        """The level whose part writes a value."""
        action_of: dict[int, int] = {}
        """The level whose actions write a value."""

        def ready(value: int, *, outside: bool) -> int:
            base = _base(self._composed, value)
            if base in action_of:
                return action_of[base] + 1
            if base in part_of:
                return part_of[base] + (1 if outside else 0)
            return 0

        def level_of(instruction: AnyInstruction) -> int:
            straight = isinstance(instruction, ComputeInstruction | RasterInstruction | EqualInstruction)
            # An action reads registers: it comes after the part of the same level, and after earlier actions.
            needed = [ready(value, outside=False) for value in read_directly(instruction)]
            if not straight:
                needed = [
                    action_of.get(_base(self._composed, value), part_of.get(_base(self._composed, value), 0))
                    for value in self._all_reads(instruction)
                ]
                return max(needed, default=0)
            for size in sizes_in(instruction, self._composed.values):
                for name in size.dimensions:
                    if (source := self._composed.sources.get(name)) is not None:
                        needed.append(ready(source.value, outside=True))
            return max(needed, default=0)

        for instruction in code.instructions:
            number = level_of(instruction)
            while len(levels) <= number:
                levels.append(_Level())
            level = levels[number]
            if isinstance(instruction, ComputeInstruction | RasterInstruction):
                level.straight.append(instruction)
                part_of.update(dict.fromkeys(written_by(instruction), number))
            elif isinstance(instruction, EqualInstruction):
                level.equalities.append(instruction)
            else:
                level.actions.append(instruction)
                action_of.update(dict.fromkeys(written_by(instruction), number))
        return levels

    def _all_reads(self, instruction: AnyInstruction) -> Iterator[int]:
        """Yield what an instruction and its blocks read, sizes included."""
        yield from read_directly(instruction)
        yield from self._sources_of(instruction)
        for block in blocks_of(instruction):
            for inner in block.instructions:
                yield from self._all_reads(inner)
            yield from block.results

    def _sources_of(self, instruction: AnyInstruction) -> Iterator[int]:
        for size in sizes_in(instruction, self._composed.values):
            for name in size.dimensions:
                if (source := self._composed.sources.get(name)) is not None:
                    yield source.value

    def _crossing_of(self, code: BlockCode, levels: list[_Level]) -> set[int]:
        """Return the values that are read elsewhere than in the part that writes them."""
        base = self._register
        crossing = {base(value) for value in code.results}
        home: dict[int, int] = {}
        for number, level in enumerate(levels):
            for step in level.straight:
                home.update(dict.fromkeys(written_by(step), number))
        for number, level in enumerate(levels):
            for inside in (*level.straight, *level.equalities):
                crossing.update(map(base, self._sources_of(inside)))
                reads = map(base, read_directly(inside))
                crossing.update(value for value in reads if home.get(value, number) != number)
            for action in level.actions:
                crossing.update(map(base, self._all_reads(action)))
        return crossing

    def _register(self, value: int) -> int:
        return _base(self._composed, value)

    def _run(self, level: _Level, crossing: set[int]) -> Action:
        composed = self._composed
        written = {value for instruction in level.straight for value in written_by(instruction)}
        constants, inputs, sizes = {}, dict[int, ValueType](), set[str]()
        for instruction in (*level.straight, *level.equalities):
            for size in sizes_in(instruction, composed.values):
                sizes |= size.dimensions
            for value in read_directly(instruction):
                kind = composed.values[value]
                assert isinstance(kind, ValueType)
                if value in composed.constants:
                    constants[value] = composed.constants[value]
                elif value not in written:
                    inputs[value] = kind
        outputs = sorted(value for value in written if value in crossing)
        names = sorted(sizes)
        new = {value: number for number, value in enumerate((*inputs, *constants, *sorted(written)))}
        kinds = [composed.values[value] for value in new]
        program = Program(
            values=tuple(kind for kind in kinds if isinstance(kind, ValueType)),
            inputs=tuple(NamedValue(str(value), new[value]) for value in inputs),
            outputs=tuple(NamedValue(str(value), new[value]) for value in outputs),
            constants={new[value]: array for value, array in constants.items()},
            instructions=tuple(_renumbered(instruction, new) for instruction in level.straight),
            bounds=Bounds(composed.bounds.ranges, composed.bounds.data, self._equal).within(sizes),
            equalities=tuple((each.left, each.right, each.origin) for each in level.equalities),
        )
        self._parts.append(program)
        run = Run(
            len(self._parts) - 1,
            tuple(self._register(value) for value in inputs),
            tuple(outputs),
            tuple(self._source(name) for name in names),
        )
        first = [*level.straight, *level.equalities][:16]
        return Action(run, joined_origin(*(instruction.origin for instruction in first)))

    def _source(self, name: str) -> SizeSource:
        source = self._composed.sources.get(name)
        if source is None:
            return self._inputs[name]
        return SizeSource(self._register(source.value), source.axis, source.element)

    # ---- actions ----
    def _action(self, instruction: AnyInstruction) -> Action:
        kind: Host | Branch | Loop
        match instruction:
            case HostInstruction():
                inputs = tuple(map(self._register, instruction.inputs))
                kind = Host(
                    instruction.operator, inputs, instruction.outputs, instruction.integers, instruction.texts
                )
            case BranchInstruction():
                kind = Branch(
                    self._register(instruction.condition),
                    self._block(instruction.then_block),
                    self._block(instruction.else_block),
                    instruction.outputs,
                )
            case LoopInstruction():
                trips, going = instruction.trip_count, instruction.condition
                kind = Loop(
                    None if trips is None else self._register(trips),
                    None if going is None else self._register(going),
                    self._block(instruction.body),
                    tuple(map(self._register, instruction.initial)),
                    instruction.outputs,
                )
            case _:
                raise AssertionError(instruction)
        return Action(kind, instruction.origin)


def _dimensions_of_inputs(composed: Composed) -> Mapping[str, SizeSource]:
    """Return for each dimension of the inputs an axis that has its size."""
    found: dict[str, SizeSource] = {}
    for named in composed.inputs:
        kind = composed.values[named.value]
        for axis, size in enumerate(kind.shape if isinstance(kind, ValueType) else ()):
            for name in size.dimensions:
                if size == Extent.dimension(name):
                    found.setdefault(name, SizeSource(named.value, axis=axis))
    return found


def _renumbered(instruction: Instruction, new: Mapping[int, int]) -> Instruction:
    moved = with_views(instruction, lambda view: replace(view, value=new[view.value]))
    if isinstance(moved, RasterInstruction):
        return replace(moved, output=new[moved.output])
    return replace(moved, outputs=tuple(new[value] for value in moved.outputs))
