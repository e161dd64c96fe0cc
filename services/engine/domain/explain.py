"""Says what a plan is made of: steps in the order in which they run, and the groups that they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from libs.runtime.atomic import RASTER
from libs.runtime.elements import ITEM_BYTES
from libs.runtime.extents import evaluate, formulas
from libs.runtime.lifetimes import tensor_lifetimes
from libs.runtime.plan import (
    Action,
    Branch,
    Compute,
    DataType,
    Host,
    Loop,
    Plan,
    Port,
    RegisterType,
    Run,
    TensorType,
)
from services.engine.domain.explanation import (
    Explanation,
    Figures,
    GroupKind,
    GroupText,
    Origins,
    StepText,
    TensorText,
)
from services.engine.domain.living import Life, living_bytes, unshared_bytes
from services.engine.domain.sizing import sizes_of

_NO_SIZES: Mapping[str, int] = MappingProxyType({})
_MOST_READS = 64
"""Of a step: enough to draw, however many pieces are put together."""
MOST_STEPS = 200_000
"""That are told one by one; what more there are counts in the figures."""


def explain(plan: Plan, origins: Origins | None = None, sizes: Mapping[str, int] = _NO_SIZES) -> Explanation:
    """Return what a checked plan is made of.

    Args:
        plan: a straight one or a composition, of which both sides of branches and one round of loops count.
        origins: what is known of its model, if anything is.
        sizes: of dimensions, by name; see `services.engine.domain.sizing`.

    Raises:
        Invalid: for sizes that there aren't, and when a formula of the plan has no value at the sizes.
    """
    teller = _Teller(plan, sizes_of(plan, sizes))
    groups = teller.told()
    whole = teller.figures
    composition = plan.composition
    constants: Iterable[bytes | None] = (
        () if composition is None else (register.constant for register in composition.registers)
    )
    return Explanation(
        model_digest=plan.model_digest,
        inputs=teller.inputs,
        outputs=teller.outputs,
        dimensions=plan.dimensions,
        steps=tuple(teller.steps),
        constant_bytes=teller.constant_bytes + sum(len(each or b"") for each in constants),
        buffer_bytes=whole.planned_bytes,
        origins=origins,
        operators=whole.operators,
        sizes=teller.sizes,
        figures=whole,
        groups=groups,
        became=_became(origins, teller.steps),
    )


def _became(origins: Origins | None, steps: Sequence[StepText]) -> tuple[tuple[int, ...], ...]:
    found: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for part in dict.fromkeys(step.origin.split(" + ")):
            found.setdefault(part, []).append(index)
    return tuple(tuple(found.get(node.origin, ())) for node in (origins.nodes if origins else ()))


@dataclass(slots=True)
class _Sums:
    """Figures of a group while it grows."""

    operators: Counter[str] = field(default_factory=Counter)
    regions: int = 0
    moved_bytes: int = 0
    raster_bytes: int = 0
    calculations: int = 0
    peak_bytes: int = 0
    planned_bytes: int = 0
    unshared_bytes: int = 0

    def add(self, other: _Sums) -> None:
        """Add what is in a group within."""
        self.operators.update(other.operators)
        self.regions += other.regions
        self.moved_bytes += other.moved_bytes
        self.raster_bytes += other.raster_bytes
        self.calculations += other.calculations
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.planned_bytes += other.planned_bytes
        self.unshared_bytes += other.unshared_bytes

    def figures(self) -> Figures:
        """Return them as they are."""
        return Figures(
            dict(sorted(self.operators.items())),
            self.regions,
            self.moved_bytes,
            self.raster_bytes,
            self.calculations,
            self.peak_bytes,
            self.planned_bytes,
            self.unshared_bytes,
        )


class _Teller:
    """Goes through a plan as a call does, and notes steps and groups."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        self._plan = plan
        self.sizes = sizes
        self.steps: list[StepText] = []
        self._count = 0
        """Of steps, those included that aren't told."""
        self._groups: list[GroupText] = []
        self._sums: list[_Sums] = []
        """Of each group."""
        self._writers: dict[int, tuple[int, ...]] = {}
        """The steps that may have written what a register holds."""
        self._told: dict[int, tuple[_Sums, list[tuple[int, ...]]]] = {}
        """Parts that were run before, which a plan of a few bytes may be often."""
        parts = (plan,) if plan.composition is None else plan.composition.parts
        self._parts = [_Part(part, sizes) for part in parts]
        self.constant_bytes = sum(part.constant_bytes for part in self._parts)

    def told(self) -> tuple[GroupText, ...]:
        """Return the groups; `steps` and `figures` are there then."""
        composition = self._plan.composition
        root = self._open("plan", "", None)
        if composition is None:
            self._straight(self._parts[0], (), root)
        else:
            self._block(0, root)
        self._close(root)
        return tuple(self._groups)

    @property
    def figures(self) -> Figures:
        """Of the whole plan."""
        return self._sums[0].figures()

    @property
    def inputs(self) -> tuple[TensorText, ...]:
        """What a call brings."""
        composition = self._plan.composition
        if composition is None:
            return self._parts[0].tensors(self._plan.inputs)
        return tuple(
            _register_text(port.name, composition.registers[port.register].type)
            for port in composition.inputs
        )

    @property
    def outputs(self) -> tuple[TensorText, ...]:
        """What it gets."""
        composition = self._plan.composition
        if composition is None:
            return self._parts[0].tensors(self._plan.outputs)
        return tuple(
            _register_text(port.name, composition.registers[port.register].type)
            for port in composition.outputs
        )

    # ---- groups ----
    def _open(self, kind: GroupKind, origin: str, parent: int | None, *registers: int | None) -> int:
        self._groups.append(GroupText(kind, origin, parent, self._count, 0, reads=self._written(registers)))
        self._sums.append(_Sums())
        if kind in ("branch", "loop"):
            self._sums[-1].operators[kind] += 1
        return len(self._groups) - 1

    def _close(self, place: int) -> None:
        """End a group: what is in it counts in the one around it too."""
        group, sums = self._groups[place], self._sums[place]
        self._groups[place] = replace(
            group, step_count=self._count - group.first_step, figures=sums.figures()
        )
        if group.parent is not None:
            self._sums[group.parent].add(sums)

    def _written(self, registers: Iterable[int | None]) -> tuple[int, ...]:
        found = {
            step for register in registers if register is not None for step in self._writers.get(register, ())
        }
        return tuple(sorted(found))[-_MOST_READS:]

    # ---- steps ----
    def _straight(self, part: _Part, given: Sequence[tuple[int, ...]], group: int) -> list[tuple[int, ...]]:
        """Note a part's steps; `given` are the writers of its inputs, and it returns those of its outputs."""
        plan, values, sums = part.plan, part.values, self._sums[group]
        writers = {port.tensor: steps for port, steps in zip(plan.inputs, given, strict=False)}
        living = living_bytes(part.lives, len(plan.steps))
        for index, step in enumerate(plan.steps):
            kind = step.kind
            if isinstance(kind, Compute):
                read, output = [view.tensor for view in kind.inputs], kind.outputs[0]
            else:
                read, output = [region.source.tensor for region in kind.regions], kind.output
                sums.regions += len(kind.regions)
                sums.raster_bytes += values[step.moved_bytes]
            operator = kind.operator if isinstance(kind, Compute) else RASTER
            sums.operators[operator] += 1
            sums.moved_bytes += values[step.moved_bytes]
            sums.calculations += values[step.calculations]
            before = {writer for tensor in read for writer in writers.get(tensor, ())}
            writers[output] = (self._count,)
            if self._count < MOST_STEPS:
                self.steps.append(
                    StepText(
                        operator=operator,
                        output=part.tensor(f"t{output}", output),
                        origin=step.origin,
                        calculations=values[step.calculations],
                        moved_bytes=values[step.moved_bytes],
                        regions=0 if isinstance(kind, Compute) else len(kind.regions),
                        reads=tuple(sorted(before))[-_MOST_READS:],
                        group=group,
                        living_bytes=living[index],
                    )
                )
            self._count += 1
        start = sum(size for birth, _, size in part.lives if birth < 0)
        sums.peak_bytes = max(living, default=start)
        sums.planned_bytes = part.buffer_bytes
        sums.unshared_bytes = unshared_bytes(part.lives)
        return [writers.get(port.tensor, ()) for port in plan.outputs]

    def _block(self, number: int, group: int) -> None:
        assert self._plan.composition is not None
        for action in self._plan.composition.blocks[number].actions:
            match action.kind:
                case Run():
                    self._run(action.kind, action, group)
                case Host():
                    self._host(action.kind, action, group)
                case Branch():
                    self._branch(action.kind, action, group)
                case Loop():
                    self._loop(action.kind, action, group)

    def _run(self, run: Run, action: Action, parent: int) -> None:
        group = self._open("part", action.origin, parent, *(source.register for source in run.dimensions))
        if run.part in self._told:
            # Its steps are told already; what it takes counts once more.
            sums, written = self._told[run.part]
            self._sums[group].add(sums)
        else:
            given = [self._written([register]) for register in run.inputs]
            written = self._straight(self._parts[run.part], given, group)
            self._told[run.part] = self._sums[group], written
        self._writers.update(zip(run.outputs, written, strict=True))
        self._close(group)

    def _host(self, host: Host, action: Action, group: int) -> None:
        assert self._plan.composition is not None
        registers = self._plan.composition.registers
        reads = self._written(host.inputs)
        output = (
            _register_text(f"r{host.outputs[0]}", registers[host.outputs[0]].type)
            if host.outputs
            else TensorText("", DataType.FLOAT32, ())
        )
        if self._count < MOST_STEPS:
            self.steps.append(StepText(host.operator, output, action.origin, 0, 0, 0, reads, group))
        self._writers.update(dict.fromkeys(host.outputs, (self._count,)))
        self._sums[group].operators[host.operator] += 1
        self._count += 1

    def _branch(self, branch: Branch, action: Action, parent: int) -> None:
        assert self._plan.composition is not None
        blocks = self._plan.composition.blocks
        group = self._open("branch", action.origin, parent, branch.condition)
        sides: tuple[tuple[GroupKind, int], ...] = (("then", branch.then_block), ("else", branch.else_block))
        for kind, number in sides:
            side = self._open(kind, action.origin, group)
            self._block(number, side)
            self._close(side)
        for place, register in enumerate(branch.outputs):
            results = [blocks[number].results[place] for _, number in sides]
            self._writers[register] = self._written(results)
        self._close(group)

    def _loop(self, loop: Loop, action: Action, parent: int) -> None:
        assert self._plan.composition is not None
        body = self._plan.composition.blocks[loop.body]
        group = self._open("loop", action.origin, parent, loop.trip_count, loop.condition)
        self._groups[group] = replace(self._groups[group], rounds=self._rounds(loop))
        for register, initial in zip(body.parameters[2:], loop.initial, strict=True):
            self._writers[register] = self._written([initial])
        self._block(loop.body, group)
        for register, result in zip(loop.outputs, body.results[1:], strict=True):
            self._writers[register] = self._written([result])
        self._close(group)

    def _rounds(self, loop: Loop) -> int:
        """Return how many rounds there are in every call; 0 where data tell."""
        composition = self._plan.composition
        assert composition is not None
        registers, body = composition.registers, composition.blocks[loop.body]
        trips = None if loop.trip_count is None else registers[loop.trip_count].constant
        on = body.results[0]
        goes_on = on == body.parameters[1] or registers[on].constant == b"\1"
        begins = loop.condition is None or registers[loop.condition].constant == b"\1"
        if trips is None or not goes_on or not begins:
            return 0
        return max(int.from_bytes(trips, "little", signed=True), 0)


def _register_text(name: str, type_: RegisterType) -> TensorText:
    if isinstance(type_, TensorType):
        shape = ("...",) if type_.shape is None else tuple("?" if s is None else str(s) for s in type_.shape)
        return TensorText(name, type_.type, shape)
    return _register_text(name, type_.element)


class _Part:
    """A straight plan at sizes of its dimensions."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        self.plan = plan
        self.values = evaluate(plan.extents, [sizes[each.name] for each in plan.dimensions])
        self._texts = formulas(plan.extents, plan.dimensions)
        self.lives = self._lives()
        self.buffer_bytes = sum(max(self.values[buffer.size_bytes], 0) for buffer in plan.buffers)
        self.constant_bytes = sum(len(each.constant) for each in plan.tensors if each.constant is not None)

    def tensor(self, name: str, index: int) -> TensorText:
        """Return a tensor for people."""
        found = self.plan.tensors[index]
        return TensorText(name, found.type, tuple(str(self._texts[extent]) for extent in found.shape))

    def tensors(self, ports: Sequence[Port]) -> tuple[TensorText, ...]:
        """Return inputs or outputs for people."""
        return tuple(self.tensor(port.name, port.tensor) for port in ports)

    def _lives(self) -> list[Life]:
        births, deaths = tensor_lifetimes(self.plan)
        for index, step in enumerate(self.plan.steps):
            if isinstance(step.kind, Compute):
                place = self._place(step.kind.outputs[0])
                for tensor in {view.tensor for view in step.kind.inputs}:
                    # What an output is written over is gone by then.
                    if deaths.get(tensor) == index and self._place(tensor) == place:
                        deaths[tensor] = index - 1
        return [(birth, deaths[tensor], self._bytes(tensor)) for tensor, birth in births.items()]

    def _place(self, tensor: int) -> tuple[int, int] | None:
        placement = self.plan.tensors[tensor].placement
        return None if placement is None else (placement.buffer, self.values[placement.offset_bytes])

    def _bytes(self, tensor: int) -> int:
        found = self.plan.tensors[tensor]
        size = ITEM_BYTES[found.type]
        for extent in found.shape:
            # A size that no call can have, for sizes that were made up.
            size *= max(self.values[extent], 0)
        return size
