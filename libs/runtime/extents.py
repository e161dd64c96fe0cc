"""Values of a plan's extents: for given dimensions, as far as they are constant, and as text for people.

Everything is one pass in order: an extent refers only to earlier ones, which `libs.runtime.check` ensures.
"""

from collections.abc import Sequence

from libs.runtime.faults import bad_plan
from libs.runtime.plan import Dimension, Extent, Operation

LIMIT = 2**62
"""No extent goes beyond it, in either direction: everything fits 64 bits."""
_LONGEST_FORMULA = 120

_SIGNS = {
    Operation.ADD: "+",
    Operation.SUBTRACT: "-",
    Operation.MULTIPLY: "*",
    Operation.FLOOR_DIVIDE: "//",
    Operation.MODULO: "%",
}


def _apply(operation: Operation, left: int, right: int, where: str) -> int:
    match operation:
        case Operation.ADD:
            value = left + right
        case Operation.SUBTRACT:
            value = left - right
        case Operation.MULTIPLY:
            value = left * right
        case Operation.MINIMUM:
            value = min(left, right)
        case Operation.MAXIMUM:
            value = max(left, right)
        case _:
            if right == 0:
                raise bad_plan(where, "divides by 0")
            value = left // right if operation is Operation.FLOOR_DIVIDE else left % right
    if not -LIMIT <= value <= LIMIT:
        raise bad_plan(where, "overflows 2^62")
    return value


def evaluate(extents: Sequence[Extent], sizes: Sequence[int]) -> list[int]:
    """Return the value of each extent for the sizes of the dimensions.

    Raises Invalid (BAD_PLAN) for a division by 0 and for a value beyond ±2^62.
    """
    values: list[int] = []
    for index, extent in enumerate(extents):
        if extent.operation is Operation.CONSTANT:
            values.append(extent.value)
        elif extent.operation is Operation.DIMENSION:
            values.append(sizes[extent.left])
        else:
            left, right = values[extent.left], values[extent.right]
            values.append(_apply(extent.operation, left, right, f"extents[{index}]"))
    return values


def constants(extents: Sequence[Extent]) -> list[int | None]:
    """Return the value of each extent that depends on no dimension, None for the others.

    Raises Invalid (BAD_PLAN) as `evaluate` does.
    """
    values: list[int | None] = []
    for index, extent in enumerate(extents):
        if extent.operation is Operation.CONSTANT:
            values.append(extent.value)
        elif extent.operation is Operation.DIMENSION:
            values.append(None)
        else:
            left, right = values[extent.left], values[extent.right]
            known = left is not None and right is not None
            values.append(_apply(extent.operation, left, right, f"extents[{index}]") if known else None)  # type: ignore[arg-type]
    return values


def formulas(extents: Sequence[Extent], dimensions: Sequence[Dimension]) -> list[int | str]:
    """Return each extent for people: an int where it is constant, else text such as "2*batch".

    A formula that grows long is replaced by its number, "#17", so that shared parts can't blow up.
    """
    texts: list[int | str] = []
    for index, (extent, known) in enumerate(zip(extents, constants(extents), strict=True)):
        if known is not None:
            texts.append(known)
            continue
        if extent.operation is Operation.DIMENSION:
            texts.append(dimensions[extent.left].name)
            continue
        left, right = str(texts[extent.left]), str(texts[extent.right])
        if extent.operation in _SIGNS:
            text = f"{_part(left)}{_SIGNS[extent.operation]}{_part(right)}"
        else:
            text = f"{'min' if extent.operation is Operation.MINIMUM else 'max'}({left}, {right})"
        texts.append(text if len(text) <= _LONGEST_FORMULA else f"#{index}")
    return texts


def _part(text: str) -> str:
    simple = text.lstrip("-#").replace("_", "").replace(".", "").isalnum() or text.startswith(
        ("min(", "max(")
    )
    return text if simple and not text.startswith("-") else f"({text})"
