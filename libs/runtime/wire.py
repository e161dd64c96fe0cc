"""Bounds on a serialised plan before protobuf parses it.

Parsing makes objects many times the size of hostile bytes (a step of two bytes becomes dozens), so the top
level and the tensors are walked first, without building anything: counts and sizes are bounded there.
The format is protobuf's: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator, Mapping

from libs.common.errors import Invalid
from libs.common.sizes import size_text
from libs.runtime.faults import bad_plan

MAX_BYTES = 1024**3
"""Of a whole plan."""
MAX_STRUCTURE_BYTES = 8 * 1024**2
"""Of everything but the elements of constants."""
MAX_COUNTS: Mapping[int, tuple[str, int]] = {
    5: ("dimensions", 64),
    6: ("extents", 65_536),
    7: ("tensors", 65_536),
    8: ("inputs", 1_024),
    9: ("outputs", 1_024),
    10: ("buffers", 1_024),
    11: ("steps", 65_536),
    12: ("equalities", 65_536),
    13: ("compositions", 1),
}
"""By field number of the Plan, for each part."""
MAX_COMPOSED: Mapping[int, tuple[str, int]] = {
    1: ("parts", 4_096),
    2: ("registers", 65_536),
    3: ("inputs", 1_024),
    4: ("outputs", 1_024),
    5: ("blocks", 1_024),
}
"""By field number of the Composition."""
MAX_REGIONS = 131_072
"""Of all rasters together."""
MAX_REPEATED = 8
"""Of axes, inputs and outputs of one thing."""
_MAX_FIELDS = 600_000
"""Of the plan and its tensors."""
_MODEL_DIGEST = 3
_TENSORS, _CONSTANT = 7, 3
_COMPOSITION, _PARTS, _REGISTERS, _REGISTER_CONSTANT, _BLOCKS = 13, 1, 2, 2, 5
_OF_A_BLOCK: Mapping[int, tuple[str, int]] = {2: ("actions in a block", 65_536)}
# The major version, tensors, outputs. ModelProto has no field 9.
_PLAN_FIELDS = frozenset({1, 7, 9})
# ModelProto: the version of its format as a number, the graph, the operator sets.
_ONNX_FIRST = 1 << 3
_ONNX_FIELDS = frozenset({1, 7, 8})
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_is_plan(data: bytes) -> None:
    """Raise Invalid (BAD_PLAN) for bytes that hold no plan of any version, saying what they seem to be.

    A plan of whatever version names the model that it was made of; an ONNX file has, under the same field
    number, the version of what wrote it, if anything.
    """
    if not data:
        raise bad_plan("it", "is empty")
    numbers = set()
    try:
        for number, start, end in _fields(data, 0, len(data), iter(range(_MAX_FIELDS))):
            if number == _MODEL_DIGEST and data[start:end].startswith(b"sha256:"):
                return
            numbers.add(number)
    except Invalid:
        # Cut off after fields that tell what it is, perhaps.
        numbers.clear()
    if numbers >= _PLAN_FIELDS:
        return  # its digest is at fault, which whoever checks it says
    if data[0] == _ONNX_FIRST and numbers >= _ONNX_FIELDS:
        raise bad_plan("it", "looks like an ONNX model; make a plan of it with `isthmus model optimize`")
    raise _malformed()


def check_bounds(data: bytes) -> None:
    """Raise Invalid (BAD_PLAN) for bytes that are no protobuf message, or a plan beyond the bounds."""
    if len(data) > MAX_BYTES:
        raise bad_plan("it", f"has {size_text(len(data))}, more than {size_text(MAX_BYTES)}")
    elements = _elements_of_plan(data, 0, len(data), iter(range(_MAX_FIELDS)), is_part=False)
    if len(data) - elements > MAX_STRUCTURE_BYTES:
        taken, allowed = size_text(len(data) - elements), size_text(MAX_STRUCTURE_BYTES)
        text = f"takes {taken} apart from constants, more than {allowed}"
        raise bad_plan("it", text)


def _elements_of_plan(data: bytes, position: int, end: int, budget: Iterator[int], *, is_part: bool) -> int:
    """Count what a plan or part holds; return the bytes of its constants."""
    counts = dict.fromkeys(MAX_COUNTS, 0)
    elements = 0
    for number, start, stop in _counted(data, position, end, budget, counts, MAX_COUNTS):
        if number == _TENSORS:
            elements += _taken(data, start, stop, budget, _CONSTANT)
        elif number == _COMPOSITION:
            if is_part:
                raise bad_plan("it", "has a part that is a composition itself")
            elements += _elements_of_composition(data, start, stop, budget)
    return elements


def _elements_of_composition(data: bytes, position: int, end: int, budget: Iterator[int]) -> int:
    counts = dict.fromkeys(MAX_COMPOSED, 0)
    elements = 0
    for number, start, stop in _counted(data, position, end, budget, counts, MAX_COMPOSED):
        if number == _PARTS:
            elements += _elements_of_plan(data, start, stop, budget, is_part=True)
        elif number == _REGISTERS:
            elements += _taken(data, start, stop, budget, _REGISTER_CONSTANT)
        elif number == _BLOCKS:
            for _ in _counted(data, start, stop, budget, dict.fromkeys(_OF_A_BLOCK, 0), _OF_A_BLOCK):
                pass
    return elements


def _counted(
    data: bytes,
    position: int,
    end: int,
    budget: Iterator[int],
    counts: dict[int, int],
    most: Mapping[int, tuple[str, int]],
) -> Iterator[tuple[int, int, int]]:
    for number, start, stop in _fields(data, position, end, budget):
        if number not in counts:
            continue
        counts[number] += 1
        if counts[number] > most[number][1]:
            raise bad_plan("it", f"has more than {most[number][1]} {most[number][0]}")
        yield number, start, stop


def _taken(data: bytes, position: int, end: int, budget: Iterator[int], field: int) -> int:
    inner = _fields(data, position, end, budget)
    return sum(stop - start for number, start, stop in inner if number == field)


def _fields(data: bytes, position: int, end: int, budget: Iterator[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) of the content of each field; each takes one of the budget."""
    while position < end:
        if next(budget, None) is None:
            raise bad_plan("it", f"has more than {_MAX_FIELDS} fields")
        tag, position = _varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            start = position
            _, position = _varint(data, position, end)
        elif kind == _BYTES:
            size, start = _varint(data, position, end)
            position = start + size
        elif kind in (_FIXED32, _FIXED64):
            start, position = position, position + (4 if kind == _FIXED32 else 8)
        else:
            raise _malformed()
        if position > end or number == 0:
            raise _malformed()
        yield number, start, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed()


def _malformed() -> Exception:
    return bad_plan("it", "can't be read: it is no plan, or it is damaged or cut off")
