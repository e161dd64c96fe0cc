"""That no tensor of a plan is written over while it is needed; the argument why memory may be shared at all.

Two tensors that are needed at the same time never share memory. A tensor is needed from the step that writes
it to the last that reads it: an input from before the first step, an output until after the last. The one
exception is an output that takes exactly the place of a tensor that its step is the last to read
(docs/adr/0024). That is sound where

* the operator allows it for the type, and over that input: in every backend it reads each element before it
  writes it, and none after;
* every view of that tensor in the step is the whole tensor in its own order: the element that is read is the
  one that is written over;
* the tensor is no input of the plan, which a runtime may read where its caller has it.

Constants lie in no buffer, and nothing is placed over them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import family
from libs.runtime.faults import bad_plan
from libs.runtime.lifetimes import tensor_lifetimes
from libs.runtime.plan import Compute, Plan


def check_overlaps(
    plan: Plan,
    offsets: Sequence[int | None],
    sizes_bytes: Sequence[int],
    reads_whole: Callable[[int, int], bool],
) -> None:
    """Raise Invalid (BAD_PLAN) where two tensors lie in one place of which both are needed at some time.

    A sweep over the steps that keeps the living tensors in order of their place: since they don't overlap, a
    new one can only touch its neighbours.

    Args:
        plan: a straight one.
        offsets: of each tensor, in bytes; None for constants.
        sizes_bytes: of each tensor.
        reads_whole: whether a step's input (its number) is the whole tensor in its own order.
    """
    births, deaths = tensor_lifetimes(plan)
    replaced: set[int] = set()
    ends: list[tuple[int, int]] = []
    alive: list[tuple[int, int]] = []
    for tensor in sorted(births, key=births.__getitem__):
        now = births[tensor]
        while ends and ends[0][0] < now:
            _, gone = heappop(ends)
            if gone not in replaced:
                del alive[bisect_left(alive, (offsets[gone] or 0, gone))]
        start, size = offsets[tensor], sizes_bytes[tensor]
        if start is None or size == 0:
            continue
        at = bisect_left(alive, (start, tensor))
        for begin, other in alive[max(at - 1, 0) : at + 1]:
            if begin < start + size and start < begin + sizes_bytes[other]:
                done = births[other] >= 0 and deaths[other] == now
                exactly = (begin, sizes_bytes[other]) == (start, size)
                if not (done and exactly and _in_place(plan, now, other, reads_whole)):
                    raise bad_plan(f"tensors[{tensor}]", f"overlaps tensors[{other}], which is still needed")
                replaced.add(other)
                alive.remove((begin, other))
        insort(alive, (start, tensor))
        heappush(ends, (deaths[tensor], tensor))


def _in_place(plan: Plan, step: int, taken: int, reads_whole: Callable[[int, int], bool]) -> bool:
    """Tell whether a step may write its output over a tensor of as many bytes that it reads."""
    kind = plan.steps[step].kind
    if not isinstance(kind, Compute):
        return False
    atomic, type_ = ATOMICS[kind.operator], plan.tensors[kind.outputs[0]].type
    return family(type_) in atomic.in_place and all(
        place in atomic.replaceable and reads_whole(step, place)
        for place, view in enumerate(kind.inputs)
        if view.tensor == taken
    )
