"""When tensors of a straight plan, and registers of a composition, are done with: what they hold can go."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from libs.runtime.plan import Action, Block, Branch, Composition, Compute, Host, Loop, Plan, Run


@dataclass(frozen=True, slots=True)
class BlockLifetimes:
    """Of one block.

    Attributes:
        after: for each action, the block's own registers that nothing reads after it.
        at_end: the block's own registers that whoever runs it has to clear after reading its results.
    """

    after: Sequence[tuple[int, ...]]
    at_end: tuple[int, ...]


def tensor_lifetimes(plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """Return the step that writes each tensor (-1 for inputs), and the last that needs it.

    Outputs are needed after the last step: at `len(plan.steps)`. Constants have no birth.
    """
    births = {port.tensor: -1 for port in plan.inputs}
    deaths = dict(births)
    for index, step in enumerate(plan.steps):
        kind = step.kind
        if isinstance(kind, Compute):
            views, output = kind.inputs, kind.outputs[0]
        else:
            views, output = tuple(region.source for region in kind.regions), kind.output
        births[output] = deaths[output] = index
        for view in views:
            deaths[view.tensor] = index
    for port in plan.outputs:
        deaths[port.tensor] = len(plan.steps)
    return births, deaths


def lifetimes(composition: Composition) -> Sequence[BlockLifetimes]:
    """Return, for each block of a sound composition, when its registers are done with.

    A block's own registers are its parameters and what its actions write; those that it gives back, or that
    are outputs of the composition, are needed until it ends. Inputs and constants are nobody's.
    """
    outputs = frozenset(named.register for named in composition.outputs)
    reads: dict[int, set[int]] = {}
    """Registers of blocks around that a block reads."""
    found: dict[int, BlockLifetimes] = {}
    for index in _inside_out(composition.blocks):
        block = composition.blocks[index]
        needed = outputs.union(block.results) if index == 0 else frozenset(block.results)
        last = dict.fromkeys(block.parameters, 0)
        read_here: set[int] = set(block.results)
        for number, action in enumerate(block.actions):
            read = _read(action).union(*(reads.pop(inner) for inner in inner_blocks(action)))
            last.update((register, number) for register in read if register in last)
            last.update(dict.fromkeys(action.kind.outputs, number))
            read_here |= read
        reads[index] = read_here.difference(last)
        after: list[list[int]] = [[] for _ in block.actions]
        at_end = []
        for register, number in last.items():
            if after and register not in needed:
                after[number].append(register)
            elif index:
                at_end.append(register)
        found[index] = BlockLifetimes([tuple(registers) for registers in after], tuple(at_end))
    return [found[index] for index in range(len(composition.blocks))]


def inner_blocks(action: Action) -> tuple[int, ...]:
    """Return the blocks that an action runs."""
    match action.kind:
        case Branch(then_block=one, else_block=other):
            return one, other
        case Loop(body=body):
            return (body,)
    return ()


def _inside_out(blocks: Sequence[Block]) -> Iterator[int]:
    """Yield the numbers of blocks, each after those that it runs."""
    order = [0]
    for index in order:
        order.extend(inner for action in blocks[index].actions for inner in inner_blocks(action))
    return reversed(order)


def _read(action: Action) -> frozenset[int]:
    kind = action.kind
    match kind:
        case Run():
            return frozenset(kind.inputs).union(source.register for source in kind.dimensions)
        case Host():
            return frozenset(kind.inputs)
        case Branch():
            return frozenset((kind.condition,))
        case Loop():
            given = (kind.trip_count, kind.condition, *kind.initial)
            return frozenset(register for register in given if register is not None)
