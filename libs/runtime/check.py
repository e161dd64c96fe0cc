"""Says whether a plan is sound, as far as that doesn't depend on the sizes of its dimensions.

The rest (bounds of views, places in memory, equal shapes) is checked by `libs.runtime.layout` once the sizes
are known. Needs neither numpy nor protobuf.
"""

import math
import re
from collections.abc import Iterable, Sequence

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.runtime.atomic import ATOMICS, Atomic
from libs.runtime.check_composition import check_composition
from libs.runtime.check_elements import check_elements
from libs.runtime.elements import ITEM_BYTES, family, same_bits
from libs.runtime.extents import LIMIT, constants
from libs.runtime.faults import bad_plan
from libs.runtime.plan import Compute, DataType, Operation, Plan, Raster, Tensor, View
from libs.runtime.wire import MAX_COUNTS

MAX_RANK = 8
MAX_TEXT = 65_536
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_plan(plan: Plan) -> None:
    """Raise Invalid (BAD_PLAN), naming the place, for the first rule that the plan breaks.

    Checked: indexes and counts, extents (also against division by 0 where constant), names, constants, that
    each tensor is written once and before it is read, operators with their types, axes and ranks, and that
    every dimension is the size of some input's axis.
    """
    parts = (
        plan.dimensions,
        plan.extents,
        plan.tensors,
        plan.inputs,
        plan.outputs,
        plan.buffers,
        plan.steps,
        plan.equalities,
    )
    for part, (name, most) in zip(parts, MAX_COUNTS.values(), strict=False):
        if len(part) > most:
            raise bad_plan(name, f"has {len(part)} entries, more than {most}")
    if not _DIGEST.fullmatch(plan.model_digest):
        raise bad_plan("model_digest", f'must be "sha256:" and 64 hex digits, not {plan.model_digest[:80]!r}')
    if plan.composition is None:
        _Checker(plan).check()
        return
    if any(parts[1:]):
        raise bad_plan("it", "has steps, tensors or ports beside a composition")
    checker = _Checker(plan)
    checker.dimensions()
    check_composition(plan.composition, [dimension.name for dimension in plan.dimensions], check_part)


def check_part(plan: Plan, where: str) -> None:
    """Raise Invalid (BAD_PLAN) as `check_plan` does, for a part: whoever runs it gives it sizes."""
    try:
        _Checker(plan, is_part=True).check()
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}", reason=error.reason) from None


class _Checker:
    def __init__(self, plan: Plan, *, is_part: bool = False) -> None:
        self._plan = plan
        self._is_part = is_part
        self._known: list[int | None] = []
        self._written: set[int] = set()

    def check(self) -> None:
        plan = self._plan
        self.dimensions()
        self._extents()
        for index, equality in enumerate(plan.equalities):
            self._extent(equality.left, f"equalities[{index}].left")
            self._extent(equality.right, f"equalities[{index}].right")
        for index, buffer in enumerate(plan.buffers):
            self._extent(buffer.size_bytes, f"buffers[{index}].size_bytes")
        for index, tensor in enumerate(plan.tensors):
            self._tensor(tensor, f"tensors[{index}]")
        self._inputs()
        for index, step in enumerate(plan.steps):
            where = f"steps[{index}]" + (f" ({step.origin[:200]})" if step.origin else "")
            self._extent(step.calculations, f"{where}.calculations")
            self._extent(step.moved_bytes, f"{where}.moved_bytes")
            if isinstance(step.kind, Compute):
                self._compute(step.kind, where)
            else:
                self._raster(step.kind, where)
        self._names("outputs", [port.name for port in plan.outputs])
        if not plan.outputs and not self._is_part:
            raise bad_plan("outputs", "is empty: the plan would compute nothing")
        for index, port in enumerate(plan.outputs):
            self._readable(port.tensor, f"outputs[{index}].tensor")

    def dimensions(self) -> None:
        self._names("dimensions", [dimension.name for dimension in self._plan.dimensions])
        for index, dimension in enumerate(self._plan.dimensions):
            if not 0 <= dimension.minimum <= dimension.maximum <= LIMIT:
                text = f"has the bounds {dimension.minimum} and {dimension.maximum}, which are no range"
                raise bad_plan(f"dimensions[{index}]", text)

    def _extents(self) -> None:
        for index, extent in enumerate(self._plan.extents):
            where = f"extents[{index}]"
            if extent.operation is Operation.CONSTANT:
                if not -LIMIT <= extent.value <= LIMIT:
                    raise bad_plan(where, f"is {extent.value}, beyond 2^62")
            elif extent.operation is Operation.DIMENSION:
                self._index(extent.left, len(self._plan.dimensions), f"{where}.left", "dimensions")
            else:
                self._index(extent.left, index, f"{where}.left", "extents before it")
                self._index(extent.right, index, f"{where}.right", "extents before it")
        self._known = constants(self._plan.extents)

    def _tensor(self, tensor: Tensor, where: str) -> None:
        if tensor.type is DataType.STRING:
            raise bad_plan(where, "holds strings, which only registers do")
        self._rank(len(tensor.shape), f"{where}.shape")
        for axis, extent in enumerate(tensor.shape):
            self._extent(extent, f"{where}.shape[{axis}]")
            known = self._known[extent]
            if known is not None and known < 0:
                raise bad_plan(f"{where}.shape[{axis}]", f"is {known}, less than 0")
        if (tensor.constant is None) == (tensor.placement is None):
            raise bad_plan(where, "must be either a constant or placed in a buffer")
        if tensor.placement is not None:
            place = tensor.placement
            self._index(place.buffer, len(self._plan.buffers), f"{where}.placement.buffer", "buffers")
            self._extent(place.offset_bytes, f"{where}.placement.offset_bytes")
        elif tensor.constant is not None:
            self._constant(tensor, tensor.constant, where)

    def _constant(self, tensor: Tensor, data: bytes, where: str) -> None:
        sizes = [self._known[extent] for extent in tensor.shape]
        elements = math.prod(-1 if size is None else size for size in sizes)
        if None in sizes:
            raise bad_plan(where, "is a constant whose shape has dimensions")
        if elements * ITEM_BYTES[tensor.type] != len(data):
            text = f"has {len(data)} bytes, but its shape {sizes} takes {elements * ITEM_BYTES[tensor.type]}"
            raise bad_plan(where, text)
        check_elements(tensor.type, data, where)

    def _inputs(self) -> None:
        plan = self._plan
        self._names("inputs", [port.name for port in plan.inputs])
        self._written = {index for index, tensor in enumerate(plan.tensors) if tensor.constant is not None}
        sized: set[int] = set()
        for index, port in enumerate(plan.inputs):
            self._write(port.tensor, f"inputs[{index}].tensor")
            extents = [plan.extents[extent] for extent in plan.tensors[port.tensor].shape]
            sized |= {extent.left for extent in extents if extent.operation is Operation.DIMENSION}
        for index, dimension in enumerate(plan.dimensions):
            if index not in sized and not self._is_part:
                raise bad_plan(f"dimension {dimension.name!r}", "is the size of no axis of an input")

    def _compute(self, step: Compute, where: str) -> None:
        atomic = ATOMICS.get(step.operator)
        if atomic is None:
            name = step.operator[:80]
            text = f"{name!r} is unknown to this runtime: update it{did_you_mean(name, ATOMICS)}"
            raise bad_plan(f"{where}.operator", text)
        if len(step.inputs) != atomic.arity:
            raise bad_plan(where, f"{atomic.name} takes {atomic.arity} inputs, not {len(step.inputs)}")
        if len(step.outputs) != 1:
            raise bad_plan(where, f"{atomic.name} has one output, not {len(step.outputs)}")
        for index, view in enumerate(step.inputs):
            self._view(view, f"{where}.inputs[{index}]")
        self._write(step.outputs[0], f"{where}.outputs[0]")
        self._check_types(step, atomic, where)
        self._check_ranks(step, atomic, where)

    def _check_types(self, step: Compute, atomic: Atomic, where: str) -> None:
        types = [self._plan.tensors[view.tensor].type for view in step.inputs]
        output = self._plan.tensors[step.outputs[0]].type
        if atomic.name == "where":
            condition, *types = types
            if condition is not DataType.BOOL:
                raise bad_plan(where, f"where chooses by a BOOL, not {condition.name}")
        if atomic.kind in ("gather", "scatter"):
            indices = types.pop(1)
            if indices not in (DataType.INT32, DataType.INT64):
                raise bad_plan(where, f"{atomic.name} takes INT32 or INT64 indices, not {indices.name}")
        if len(set(types)) > 1:
            names = ", ".join(type_.name for type_ in types)
            raise bad_plan(where, f"{atomic.name} takes inputs of one type, not {names}")
        if family(types[0]) not in atomic.types:
            raise bad_plan(where, f"{atomic.name} doesn't take {types[0].name}")
        wanted = {"same": types[0], "bool": DataType.BOOL, "index": DataType.INT64, "any": output}
        if atomic.name == "bit_cast" and (output is DataType.BOOL or not same_bits(types[0], output)):
            raise bad_plan(where, f"bit_cast can't make {output.name} of {types[0].name}: other bits")
        if atomic.name == "cast" and family(output) == "c":
            raise bad_plan(where, f"cast can't make {output.name} of {types[0].name}")
        if output is not wanted[atomic.result]:
            text = f"{atomic.name} gives {wanted[atomic.result].name}, but its output is {output.name}"
            raise bad_plan(where, text)

    def _check_ranks(self, step: Compute, atomic: Atomic, where: str) -> None:
        ranks = [len(view.axes) for view in step.inputs]
        output = len(self._plan.tensors[step.outputs[0]].shape)
        axes, most = step.axes, MAX_RANK
        match atomic.kind:
            case "elementwise":
                least, wanted, most = 0, output, 0
            case "matmul":
                least, wanted, most = 2, output, 0
            case "reduce":
                least = 1 if atomic.result == "index" else 0
                wanted, most = output + len(axes), 1 if least else MAX_RANK
            case "gather":
                least, wanted, most = 1, output + 1 - ranks[1], 1
            case "scan" | "sort":
                least, wanted, most = 1, output, 1
            case "scatter":
                least, wanted, most = 1, output, 0
        exact = atomic.kind in ("gather", "scan", "sort") or atomic.result == "index"
        if len(axes) > most or (exact and len(axes) != 1):
            count = "one axis" if exact else f"at most {most} axes" if most else "no axes"
            raise bad_plan(f"{where}.axes", f"{atomic.name} takes {count}, not {len(axes)}")
        if len(set(axes)) != len(axes) or any(not 0 <= axis < ranks[0] for axis in axes):
            raise bad_plan(
                f"{where}.axes", f"{list(axes)} aren't different axes of an input of rank {ranks[0]}"
            )
        checked = ranks[:1] if atomic.kind == "gather" else ranks
        if atomic.kind == "scatter":
            checked = ranks[::2]
            if ranks[1] != 1:
                raise bad_plan(where, f"scatter's indices have {ranks[1]} axes, not 1")
        if min(checked) < least or any(rank != wanted for rank in checked):
            text = f"{atomic.name} of inputs of rank {ranks} doesn't give an output of rank {output}"
            raise bad_plan(where, text)

    def _raster(self, step: Raster, where: str) -> None:
        for index, region in enumerate(step.regions):
            place = f"{where}.regions[{index}]"
            self._view(region.source, f"{place}.source")
            self._extent(region.destination_offset, f"{place}.destination_offset")
            if len(region.destination_strides) != len(region.source.axes):
                count = f"{len(region.destination_strides)} strides for {len(region.source.axes)} axes"
                raise bad_plan(f"{place}.destination_strides", f"has {count}")
            for stride in region.destination_strides:
                self._extent(stride, f"{place}.destination_strides")
        self._write(step.output, f"{where}.output")
        type_ = self._plan.tensors[step.output].type
        for index, region in enumerate(step.regions):
            source = self._plan.tensors[region.source.tensor].type
            if source is not type_:
                raise bad_plan(f"{where}.regions[{index}]", f"moves {source.name} into {type_.name}")
        if step.fill:
            if len(step.fill) != ITEM_BYTES[type_]:
                raise bad_plan(
                    f"{where}.fill", f"has {len(step.fill)} bytes, not the {ITEM_BYTES[type_]} of one"
                )
            check_elements(type_, step.fill, f"{where}.fill")

    def _view(self, view: View, where: str) -> None:
        self._readable(view.tensor, f"{where}.tensor")
        self._extent(view.offset, f"{where}.offset")
        self._rank(len(view.axes), f"{where}.axes")
        for axis in view.axes:
            self._extent(axis.size, f"{where}.axes")
            self._extent(axis.stride, f"{where}.axes")

    def _readable(self, tensor: int, where: str) -> None:
        self._index(tensor, len(self._plan.tensors), where, "tensors")
        if tensor not in self._written:
            raise bad_plan(where, f"is tensor {tensor}, which nothing has written before")

    def _write(self, tensor: int, where: str) -> None:
        self._index(tensor, len(self._plan.tensors), where, "tensors")
        if tensor in self._written:
            constant = self._plan.tensors[tensor].constant is not None
            raise bad_plan(
                where, f"is tensor {tensor}, which is {'constant' if constant else 'written already'}"
            )
        self._written.add(tensor)

    def _extent(self, extent: int, where: str) -> None:
        self._index(extent, len(self._plan.extents), where, "extents")

    def _index(self, index: int, count: int, where: str, what: str) -> None:
        if not 0 <= index < count:
            raise bad_plan(where, f"is {index}, but there are {count} {what}")

    def _rank(self, rank: int, where: str) -> None:
        if rank > MAX_RANK:
            raise bad_plan(where, f"has {rank} axes, more than {MAX_RANK}")

    def _names(self, where: str, names: Sequence[str]) -> None:
        for index, name in enumerate(names):
            if not name or len(name) > MAX_TEXT:
                raise bad_plan(
                    f"{where}[{index}].name", f"must have 1 to {MAX_TEXT} characters, not {len(name)}"
                )
        for index, name in _repeated(names):
            raise bad_plan(f"{where}[{index}].name", f"{name[:80]!r} is there already")


def _repeated(names: Iterable[str]) -> Iterable[tuple[int, str]]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield index, name
        seen.add(name)
