"""Runs compositions: blocks of actions over registers, each action made a function once.

A register holds an array, or a list for a sequence or an optional. Arrays in registers are never written
to, so that they may be in several at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from libs.common.errors import Exhausted, Invalid
from libs.common.sizes import size_text
from libs.runtime.bind import Binding
from libs.runtime.faults import TOO_MUCH_MEMORY, TOO_MUCH_WORK, bad_input
from libs.runtime.host import Limits, host_operator
from libs.runtime.inputs import PortSpec
from libs.runtime.kernels.fault import Array, DataFault
from libs.runtime.layout import Layout, lay_out
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import Action, Block, Branch, Host, Loop, Plan, Run, SizeSource, TensorType
from libs.runtime.pool import BindingPool
from libs.runtime.registers import RegisterReader, constant_of, given_back, register_spec
from libs.runtime.work import work_of

MOST_ROUNDS = 1 << 31
LARGEST_SIZE = 1 << 40
_WORK_OF_AN_ACTION = 2_000
"""Calculations that count for each action: it takes some microseconds."""


class _Call:
    """The state of one call."""

    __slots__ = ("bytes", "dimensions", "registers", "work")

    def __init__(self, registers: list[Any], dimensions: Mapping[str, int]) -> None:
        self.registers = registers
        self.dimensions = dimensions
        self.work = 0
        self.bytes = 0
        """Of what sequences and loops collected."""


Step = Callable[[_Call], None]


class Composed:
    """A plan with a composition that can be run, from any number of threads at once."""

    def __init__(self, plan: Plan, max_buffer_bytes: int, max_bindings: int, max_work: int | None) -> None:
        assert plan.composition is not None
        self._composition = composition = plan.composition
        self._max_bytes = max_buffer_bytes
        self._max_work = max_work
        self._reader = RegisterReader(plan)
        self.inputs: tuple[PortSpec, ...] = self._reader.specs
        self.outputs: tuple[PortSpec, ...] = tuple(
            register_spec(named.name, composition.registers[named.register].type)
            for named in composition.outputs
        )
        self._constants = [
            constant_of(register) if register.constant is not None else None
            for register in composition.registers
        ]
        self._works: dict[tuple[int, ...], int] = {}
        self._pool = BindingPool(
            self._lay_out,
            lambda key, layout: Binding(composition.parts[key[0]], layout),
            max_bytes=max_buffer_bytes,
            max_kept=max_bindings * max(1, min(len(composition.parts), 64)),
        )
        self._steps = self._block(composition.blocks[0])

    @property
    def held_bytes(self) -> int:
        """Memory of bindings, in use or kept."""
        return self._pool.bytes

    def run(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute the outputs, by name; see `libs.runtime.program`."""
        values, dimensions = self._reader.values(inputs)
        registers = list(self._constants)
        for named, value in zip(self._composition.inputs, values, strict=True):
            registers[named.register] = value
        call = _Call(registers, dimensions)
        with np.errstate(all="ignore"):
            for step in self._steps:
                step(call)
        return {
            named.name: given_back(
                registers[named.register], self._composition.registers[named.register].type
            )
            for named in self._composition.outputs
        }

    # ---- actions as functions ----
    def _block(self, block: Block) -> list[Step]:
        return [self._action(action) for action in block.actions]

    def _action(self, action: Action) -> Step:
        kind = action.kind
        where = f"{action.origin[:200]}: " if action.origin else ""
        match kind:
            case Run():
                return self._run(kind, where)
            case Branch():
                return self._branch(kind, where)
            case Loop():
                return self._loop(kind, where)
            case Host():
                return self._host(kind, where)

    def _run(self, run: Run, where: str) -> Step:
        part, inputs, outputs, pool = run.part, run.inputs, run.outputs, self._pool
        plan = self._composition.parts[part]
        sources = [
            (_size(source, where), dimension.minimum, dimension.maximum)
            for source, dimension in zip(run.dimensions, plan.dimensions, strict=True)
        ]
        names = [dimension.name for dimension in plan.dimensions]

        def step(call: _Call) -> None:
            registers = call.registers
            key = [part]
            for place, (size_of, low, high) in enumerate(sources):
                size = size_of(registers)
                if not low <= size <= high:
                    raise bad_input(f"{where}size {names[place]} is {size}, which is not in {low} to {high}")
                key.append(size)
            sizes = tuple(key)
            if self._max_work is not None:
                self._spend(call, self._work(sizes))
            arrays = [registers[register] for register in inputs]
            try:
                with pool.lend(sizes) as binding:
                    for array, shape in zip(arrays, binding.input_shapes, strict=True):
                        if array.shape != shape:
                            text = f"{where}an array has the shape {list(array.shape)}"
                            raise bad_input(f"{text}; sizes that must agree make it {list(shape)}")
                    results = binding.run(arrays)
            except Invalid as error:
                # Sizes that data decide and that don't fit are the data's fault.
                raise bad_input(f"{where}{error.message}") from None
            for register, result in zip(outputs, results, strict=True):
                registers[register] = result

        return step

    def _lay_out(self, key: tuple[int, ...]) -> Layout:
        plan = self._composition.parts[key[0]]
        return lay_out(plan, key[1:], max_buffer_bytes=self._max_bytes)

    def _work(self, key: tuple[int, ...]) -> int:
        known = self._works.get(key)
        if known is None:
            known = work_of(self._composition.parts[key[0]], self._lay_out(key)) + _WORK_OF_AN_ACTION
            if len(self._works) > 4096:
                self._works.clear()
            self._works[key] = known
        return known

    def _spend(self, call: _Call, work: int) -> None:
        call.work += work
        if self._max_work is not None and call.work > self._max_work:
            text = f"a call takes more than {self._max_work} calculations"
            raise Exhausted(text, reason=TOO_MUCH_WORK)

    def _hold(self, call: _Call, size: int) -> None:
        call.bytes += size
        if call.bytes > self._max_bytes:
            text = f"what sequences and loops collect takes more than {size_text(self._max_bytes)}"
            raise Exhausted(text, reason=TOO_MUCH_MEMORY)

    def _branch(self, branch: Branch, where: str) -> Step:
        blocks = self._composition.blocks
        sides = [
            (self._block(blocks[index]), blocks[index].results)
            for index in (branch.else_block, branch.then_block)
        ]
        condition, outputs = branch.condition, branch.outputs

        def step(call: _Call) -> None:
            registers = call.registers
            steps, results = sides[_flag(registers[condition], where)]
            for inner in steps:
                inner(call)
            for register, result in zip(outputs, results, strict=True):
                registers[register] = registers[result]

        return step

    def _loop(self, loop: Loop, where: str) -> Step:
        body = self._composition.blocks[loop.body]
        steps = self._block(body)
        number_at, going_at, *carried_at = body.parameters
        going_result, *results = body.results
        carried = len(loop.initial)
        stacks_at = loop.outputs[carried:]
        types = [self._composition.registers[register].type for register in stacks_at]

        def step(call: _Call) -> None:
            registers = call.registers
            trips = MOST_ROUNDS
            if loop.trip_count is not None:
                trips = min(_integer(registers[loop.trip_count], where), MOST_ROUNDS)
            going = loop.condition is None or _flag(registers[loop.condition], where)
            state = [registers[register] for register in loop.initial]
            stacks: list[list[Array]] = [[] for _ in stacks_at]
            number = 0
            while going and number < trips:
                registers[number_at] = np.array(number, np.int64)
                registers[going_at] = np.array(going)
                for register, value in zip(carried_at, state, strict=True):
                    registers[register] = value
                self._spend(call, _WORK_OF_AN_ACTION)
                try:
                    for inner in steps:
                        inner(call)
                except Invalid as error:
                    text = f"{where}round {number}: {error.message}"
                    raise Invalid(text, reason=error.reason) from None
                going = _flag(registers[going_result], where)
                state = [registers[register] for register in results[:carried]]
                for stack, register in zip(stacks, results[carried:], strict=True):
                    self._hold(call, registers[register].nbytes)
                    stack.append(registers[register])
                number += 1
            if going and loop.trip_count is None:
                raise bad_input(f"{where}it doesn't end within {MOST_ROUNDS} rounds")
            for register, value in zip(loop.outputs, state, strict=False):
                registers[register] = value
            for register, stack, type_ in zip(stacks_at, stacks, types, strict=True):
                registers[register] = _stacked(stack, type_, call.dimensions, where)

        return step

    def _host(self, host: Host, where: str) -> Step:
        types = [self._composition.registers[register].type for register in host.outputs]
        apply = host_operator(host, types)
        inputs, outputs = host.inputs, host.outputs

        def step(call: _Call) -> None:
            registers = call.registers
            self._spend(call, _WORK_OF_AN_ACTION)
            limits = Limits(self._max_bytes - call.bytes)
            try:
                results = apply([registers[register] for register in inputs], limits)
            except DataFault as error:
                raise bad_input(f"{where}{error}") from None
            self._hold(call, limits.taken)
            self._spend(call, limits.taken)
            for register, result in zip(outputs, results, strict=True):
                registers[register] = result

        return step


def _size(source: SizeSource, where: str) -> Callable[[Sequence[Any]], int]:
    register, axis, element = source.register, source.axis, source.element

    def of_axis(registers: Sequence[Any]) -> int:
        shape = registers[register].shape
        if axis is None or axis >= len(shape):
            raise bad_input(f"{where}an array has {len(shape)} axes, fewer than the model needs")
        return int(shape[axis])

    def of_element(registers: Sequence[Any]) -> int:
        array = registers[register]
        if element is None or element >= array.size:
            raise bad_input(f"{where}a list of sizes has {array.size} of them, fewer than the model needs")
        return int(array.reshape(-1)[element])

    return of_element if axis is None else of_axis


def _single(array: Array, where: str) -> Any:
    if array.size != 1:
        raise bad_input(f"{where}a condition or count has the shape {list(array.shape)}, not one element")
    return array.reshape(-1)[0]


def _flag(array: Array, where: str) -> bool:
    return bool(_single(array, where))


def _integer(array: Array, where: str) -> int:
    return int(_single(array, where))


def _stacked(stack: list[Array], type_: Any, dimensions: Mapping[str, int], where: str) -> Array:
    if not stack:
        assert isinstance(type_, TensorType)
        sizes = [
            size if isinstance(size, int) else dimensions.get(size or "", 0) for size in type_.shape or (0,)
        ]
        return np.empty([0, *sizes[1:]], DTYPES[type_.type])
    if any(array.shape != stack[0].shape for array in stack):
        shapes = sorted({str(list(array.shape)) for array in stack})
        raise bad_input(f"{where}what rounds collect has several shapes: {', '.join(shapes[:4])}")
    return np.stack(stack)
