"""Says whether an action with a host operator is sound, as far as types tell. Needs no numpy."""

from collections.abc import Iterator, Sequence

from libs.common.suggest import did_you_mean
from libs.runtime.atomic import HOST, HostOperator
from libs.runtime.check_elements import is_text
from libs.runtime.elements import family
from libs.runtime.faults import bad_plan
from libs.runtime.plan import DataType, Host, RegisterType, TensorType
from libs.runtime.register_types import fits, is_tensor, type_text

MAX_RANK = 8
_LONGEST_TEXT = 4096
_POSITIONS = (DataType.INT32, DataType.INT64)


def check_host(host: Host, given: Sequence[RegisterType], made: Sequence[RegisterType], where: str) -> None:
    """Raise Invalid (BAD_PLAN) naming `where` for the first rule that an action breaks.

    Args:
        host: the action.
        given: types of the registers that it reads.
        made: types of the registers that it writes.
        where: its place in the plan.
    """
    operator = HOST.get(host.operator)
    if operator is None:
        name = host.operator[:80]
        text = f"names host operator {name!r}, unknown to this runtime: update it{did_you_mean(name, HOST)}"
        raise bad_plan(where, text)
    least, most = operator.integers
    if not least <= len(host.integers) <= most or len(host.texts) != operator.texts:
        raise bad_plan(where, f"gives {operator.name} {len(host.integers)} numbers, {len(host.texts)} texts")
    if any(len(text) > _LONGEST_TEXT for text in host.texts):
        raise bad_plan(where, f"has a text of more than {_LONGEST_TEXT} characters")
    if not all(map(is_text, host.texts)):
        raise bad_plan(where, "has a text with half of a surrogate pair, which is no character")
    if not all(-(1 << 63) <= number < 1 << 63 for number in host.integers):
        raise bad_plan(where, "has a number of more than 64 bits")
    _check_kinds(operator, operator.inputs, given, where)
    outputs = operator.outputs
    if outputs and outputs[-1].endswith("+"):
        outputs = (*outputs[:-1], *[outputs[-1].rstrip("+")] * len(given))
    _check_kinds(operator, outputs, made, where)
    for holds, text in _rules(host, given, made):
        if not holds:
            types = ", ".join(map(type_text, given)) or "nothing"
            raise bad_plan(where, f"{operator.name} of {types} to {', '.join(map(type_text, made))}: {text}")


def _check_kinds(
    operator: HostOperator, wanted: Sequence[str], types: Sequence[RegisterType], where: str
) -> None:
    kinds = [kind.rstrip("?+") for kind in wanted]
    least = len(wanted) - (1 if wanted and wanted[-1].endswith("?") else 0)
    if wanted and wanted[-1].endswith("+"):
        kinds += [kinds[-1]] * (len(types) - len(kinds))
    if not least <= len(types) <= len(kinds):
        raise bad_plan(where, f"gives {operator.name} {len(types)} things, not {len(wanted)}")
    for kind, type_ in zip(kinds, types, strict=False):
        if not _is(kind, type_):
            raise bad_plan(where, f"gives {operator.name} something else than {kind}: {type_text(type_)}")


def _is(kind: str, type_: RegisterType) -> bool:
    match kind:
        case "sequence":
            return not isinstance(type_, TensorType)
        case "tensor":
            return isinstance(type_, TensorType) and type_.type is not DataType.STRING
        case "strings":
            return isinstance(type_, TensorType) and type_.type is DataType.STRING
    return True


def _rules(
    host: Host, given: Sequence[RegisterType], made: Sequence[RegisterType]
) -> Iterator[tuple[bool, str]]:
    """Yield whether each rule of an operator holds, and what it says."""
    match host.operator:
        case "sequence_insert" | "sequence_erase" | "sequence_at":
            yield from _of_lists(host.operator, given, made)
        case "sequence_length":
            yield _has_type(made[0], DataType.INT64) and is_tensor(made[0], axes=0), "it gives one INT64"
        case "sequence_concat":
            yield from _of_concat(host, _element(given[0]), made[0])
        case "string_cast":
            yield from _of_cast(host, given[0], made[0])
        case "decode_image":
            bytes_ = _has_type(given[0], DataType.UINT8) and is_tensor(given[0], axes=1)
            yield bytes_, "it takes a vector of UINT8"
            pixels = _has_type(made[0], DataType.UINT8) and is_tensor(made[0], axes=3)
            yield pixels, "it gives three axes of UINT8"
        case "random_bits":
            shape = _has_type(given[0], DataType.INT64) and is_tensor(given[0], axes=1)
            yield shape, "it takes a vector of INT64"
            yield _has_type(made[0], DataType.UINT32), "it gives UINT32"
        case _:
            yield from _of_strings(host.operator, given, made)


def _of_lists(
    operator: str, given: Sequence[RegisterType], made: Sequence[RegisterType]
) -> Iterator[tuple[bool, str]]:
    if operator == "sequence_at":
        yield fits(_element(given[0]), made[0]), "it gives what the sequence holds"
    else:
        yield fits(given[0], made[0]), "it gives a sequence of the same"
    if operator == "sequence_insert":
        yield fits(given[1], _element(made[0])), "an item is of another type"
    if len(given) == (3 if operator == "sequence_insert" else 2):
        yield any(_has_type(given[-1], type_) for type_ in _POSITIONS), "a position is INT32 or INT64"


def _of_concat(host: Host, element: RegisterType, made: RegisterType) -> Iterator[tuple[bool, str]]:
    axis, stacked = host.integers
    yield -MAX_RANK <= axis < MAX_RANK and stacked in (0, 1), "it asks for an axis, and 0 or 1"
    if not isinstance(element, TensorType) or not isinstance(made, TensorType):
        yield False, "it joins tensors to a tensor"
        return
    yield element.type is made.type, "it gives elements of the same type"
    if element.shape is not None:
        rank = len(element.shape) + stacked
        yield is_tensor(made, axes=rank), "it gives as many axes, or one more"
        yield -rank <= axis < rank, f"there is no axis {axis}"


def _of_cast(host: Host, given: RegisterType, made: RegisterType) -> Iterator[tuple[bool, str]]:
    if not isinstance(given, TensorType) or not isinstance(made, TensorType):
        yield False, "it converts a tensor to a tensor"
        return
    yield host.integers[0] == made.type, "it asks for the type that it gives"
    texts = [type_.type is DataType.STRING for type_ in (given, made)]
    yield texts[0] != texts[1], "one of both is strings"
    other = made if texts[0] else given
    yield other.type is DataType.STRING or family(other.type) != "c", "the other one isn't complex"
    yield _same_axes(given, made), "it gives as many axes"


def _of_strings(
    operator: str, given: Sequence[RegisterType], made: Sequence[RegisterType]
) -> Iterator[tuple[bool, str]]:
    like_input = made
    match operator:
        case "string_rank":
            yield is_tensor(made[0], axes=1), "the table has one axis"
            yield all(_has_type(places, DataType.INT64) for places in made[1:]), "places are INT64"
            yield all(map(_same_axes, given, made[1:])), "it gives as many axes"
            return
        case "string_take":
            yield any(_has_type(given[1], type_) for type_ in _POSITIONS), "places are INT32 or INT64"
        case "string_split":
            yield _has_type(made[1], DataType.INT64), "it counts in INT64"
            yield _same_axes(given[0], made[0], more=1), "it gives one axis more"
            like_input = made[1:]
        case "string_match":
            yield _has_type(made[0], DataType.BOOL), "it gives BOOL"
        case "string_concat":
            yield _same_axes(given[0], given[1]), "both have as many axes"
    if given:
        yield all(_same_axes(given[-1], type_) for type_ in like_input), "it gives as many axes"


def _element(type_: RegisterType) -> RegisterType:
    return type_ if isinstance(type_, TensorType) else type_.element


def _has_type(type_: RegisterType, wanted: DataType) -> bool:
    return isinstance(type_, TensorType) and type_.type is wanted


def _same_axes(one: RegisterType, other: RegisterType, *, more: int = 0) -> bool:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return False
    return one.shape is None or is_tensor(other, axes=len(one.shape) + more)
