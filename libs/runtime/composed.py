"""Runs compositions: blocks of actions over registers, each action made a function once.

A register holds an array, or a list for a sequence or an optional. Arrays in registers are never written
to, so that they may be in several at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from libs.common.errors import Exhausted, Invalid
from libs.runtime.bind import Binding
from libs.runtime.faults import TOO_MUCH_WORK, bad_input
from libs.runtime.host import Limits, host_operator
from libs.runtime.inputs import PortSpec
from libs.runtime.kernels.fault import Array, DataFault
from libs.runtime.layout import Layout, lay_out
from libs.runtime.ledger import Ledger, bytes_of
from libs.runtime.lifetimes import lifetimes
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import Action, Branch, Host, Loop, Plan, Run, SizeSource, TensorType
from libs.runtime.pool import BindingPool
from libs.runtime.registers import RegisterReader, constant_of, given_back, register_spec
from libs.runtime.work import work_of

MOST_ROUNDS = 1 << 31
_WORK_OF_AN_ACTION = 2_000
"""Calculations that count for each action: it takes some microseconds."""
_WORK_OF_A_KERNEL = 1_000
"""The same for each step of a part."""
_WORK_OF_BINDING = 50_000
"""The same for each step of a part that is bound at sizes that are new."""
_POINTER_BYTES = 8
_GOING = np.array(True)
_GOING.flags.writeable = False


class _Call:
    """The state of one call."""

    __slots__ = ("_most_work", "dimensions", "ledger", "registers", "work")

    def __init__(
        self, registers: list[Any], dimensions: Mapping[str, int], ledger: Ledger, most_work: int | None
    ) -> None:
        self.registers = registers
        self.dimensions = dimensions
        self.ledger = ledger
        self.work = 0
        self._most_work = most_work

    @property
    def free_work(self) -> int | None:
        return None if self._most_work is None else self._most_work - self.work

    def spend(self, work: int) -> None:
        self.work += work
        if self._most_work is not None and self.work > self._most_work:
            text = f"a call takes more than {self._most_work} calculations"
            raise Exhausted(text, reason=TOO_MUCH_WORK)

    def binding(self, layout: Layout) -> None:
        """Count a binding that is about to be made, and make room for it."""
        self.spend(_WORK_OF_BINDING * (1 + len(layout.steps)))
        self.ledger.trim()


class _CallLimits(Limits):
    """Takes from the memory that all calls share."""

    def __init__(self, call: _Call, most_bytes: int) -> None:
        super().__init__(most_bytes - call.ledger.bytes, call.free_work)
        self._ledger = call.ledger

    def take(self, size: int) -> None:
        super().take(size)
        self._ledger.room(self.taken)


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
        self._lifetimes = lifetimes(composition)
        self._pool = BindingPool(
            self._lay_out,
            self._bind,
            max_bytes=max_buffer_bytes,
            # At least one for each part, or rounds of a loop would bind the same parts again and again.
            max_kept=len(composition.parts) + max_bindings * min(len(composition.parts), 64),
        )
        self._steps = self._block(0)

    @property
    def held_bytes(self) -> int:
        """Memory of bindings, in use or kept, and of the registers of calls."""
        return self._pool.bytes

    def run(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute the outputs, by name; see `libs.runtime.program`."""
        values, dimensions = self._reader.values(inputs)
        registers = list(self._constants)
        for named, value in zip(self._composition.inputs, values, strict=True):
            registers[named.register] = value
        del values
        ledger = Ledger(self._pool)
        call = _Call(registers, dimensions, ledger, self._max_work)
        try:
            with np.errstate(all="ignore"):
                for step in self._steps:
                    step(call)
            return {
                named.name: given_back(
                    registers[named.register], self._composition.registers[named.register].type
                )
                for named in self._composition.outputs
            }
        finally:
            ledger.close()

    # ---- parts at sizes ----
    def _lay_out(self, key: tuple[int, ...]) -> Layout:
        plan = self._composition.parts[key[0]]
        return lay_out(plan, key[1:], max_buffer_bytes=self._max_bytes)

    def _bind(self, key: tuple[int, ...], layout: Layout) -> Binding:
        plan = self._composition.parts[key[0]]
        binding = Binding(plan, layout)
        if self._max_work is not None:
            overhead = _WORK_OF_AN_ACTION + _WORK_OF_A_KERNEL * len(layout.steps)
            binding.work = work_of(plan, layout) + overhead
        return binding

    # ---- actions as functions ----
    def _block(self, index: int) -> list[Step]:
        actions = self._composition.blocks[index].actions
        steps = []
        for action, done in zip(actions, self._lifetimes[index].after, strict=True):
            steps.append(self._action(action))
            if done:
                steps.append(_clearing(done))
        return steps

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
            registers, ledger = call.registers, call.ledger
            key = [part]
            for place, (size_of, low, high) in enumerate(sources):
                size = size_of(registers)
                if not low <= size <= high:
                    raise bad_input(f"{where}size {names[place]} is {size}, which is not in {low} to {high}")
                key.append(size)
            arrays = [registers[register] for register in inputs]
            try:
                with pool.lend(tuple(key), call.binding) as binding:
                    for array, shape in zip(arrays, binding.input_shapes, strict=True):
                        if array.shape != shape:
                            text = f"{where}an array has the shape {list(array.shape)}"
                            raise bad_input(f"{text}; sizes that must agree make it {list(shape)}")
                    call.spend(binding.work)
                    ledger.room(binding.output_bytes)
                    results = binding.run(arrays)
            except Invalid as error:
                # Sizes that data decide and that don't fit are the data's fault.
                raise bad_input(f"{where}{error.message}") from None
            for register, result in zip(outputs, results, strict=True):
                ledger.enter(result, result.nbytes)
                registers[register] = result

        return step

    def _branch(self, branch: Branch, where: str) -> Step:
        blocks = self._composition.blocks
        sides = [
            (self._block(index), blocks[index].results, self._lifetimes[index].at_end)
            for index in (branch.else_block, branch.then_block)
        ]
        condition, outputs = branch.condition, branch.outputs

        def step(call: _Call) -> None:
            registers = call.registers
            steps, results, done = sides[_flag(registers[condition], where)]
            call.spend(_WORK_OF_AN_ACTION)
            for inner in steps:
                inner(call)
            for register, result in zip(outputs, results, strict=True):
                registers[register] = registers[result]
            for register in done:
                registers[register] = None

        return step

    def _loop(self, loop: Loop, where: str) -> Step:
        body = self._composition.blocks[loop.body]
        steps, done = self._block(loop.body), self._lifetimes[loop.body].at_end
        number_at, going_at, *carried_at = body.parameters
        going_result, *results = body.results
        carried = len(loop.initial)
        carried_results, collected_results = results[:carried], results[carried:]
        stacks_at = loop.outputs[carried:]
        types = [self._composition.registers[register].type for register in stacks_at]

        def begin(call: _Call, number: int, state: Sequence[Any]) -> None:
            counted = np.array(number, np.int64)
            call.ledger.enter(counted, counted.nbytes)
            call.registers[number_at] = counted
            call.registers[going_at] = _GOING
            for register, value in zip(carried_at, state, strict=True):
                call.registers[register] = value

        def step(call: _Call) -> None:
            registers, ledger = call.registers, call.ledger
            trips = None if loop.trip_count is None else _integer(registers[loop.trip_count], where)
            going = loop.condition is None or _flag(registers[loop.condition], where)
            state = [registers[register] for register in loop.initial]
            stacks: list[list[Array]] = [[] for _ in stacks_at]
            collected = number = 0
            while going and (trips is None or number < trips):
                if number >= MOST_ROUNDS:
                    raise bad_input(f"{where}it doesn't end within {MOST_ROUNDS} rounds")
                call.spend(_WORK_OF_AN_ACTION)
                begin(call, number, state)
                # So that a round can let go of what it doesn't need any more.
                state.clear()
                try:
                    for inner in steps:
                        inner(call)
                except Invalid as error:
                    text = f"{where}round {number}: {error.message}"
                    raise Invalid(text, reason=error.reason) from None
                going = _flag(registers[going_result], where)
                state = [registers[register] for register in carried_results]
                for stack, register in zip(stacks, collected_results, strict=True):
                    # What putting them together will take, and their places until then.
                    collected += bytes_of(registers[register]) + _POINTER_BYTES
                    stack.append(registers[register])
                if stacks:
                    ledger.room(collected)
                for register in done:
                    registers[register] = None
                number += 1
            for register, value in zip(loop.outputs, state, strict=False):
                registers[register] = value
            for register, stack, type_ in zip(stacks_at, stacks, types, strict=True):
                registers[register] = stacked = _stacked(stack, type_, call.dimensions, where)
                ledger.enter(stacked, bytes_of(stacked))
                stack.clear()

        return step

    def _host(self, host: Host, where: str) -> Step:
        types = [self._composition.registers[register].type for register in host.outputs]
        apply = host_operator(host, types)
        inputs, outputs = host.inputs, host.outputs
        is_new = host.operator != "sequence_at"

        def step(call: _Call) -> None:
            registers = call.registers
            call.spend(_WORK_OF_AN_ACTION)
            limits = _CallLimits(call, self._max_bytes)
            try:
                results = apply([registers[register] for register in inputs], limits)
            except DataFault as error:
                raise bad_input(f"{where}{error}") from None
            call.spend(limits.work)
            for register, result in zip(outputs, results, strict=True):
                if is_new:
                    call.ledger.enter(result, bytes_of(result))
                registers[register] = result

        return step


def _clearing(done: Sequence[int]) -> Step:
    def step(call: _Call) -> None:
        for register in done:
            call.registers[register] = None

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
