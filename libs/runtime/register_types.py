"""Types of registers: whether what one holds may go into another, and what people call them."""

from libs.runtime.plan import RegisterType, SequenceType, TensorType


def fits(one: RegisterType, other: RegisterType) -> bool:
    """Tell whether registers of two types may hold the same thing, as far as their types tell.

    Sizes are left to those who compute with them. Sequences and optionals are lists alike.
    """
    while not isinstance(one, TensorType) and not isinstance(other, TensorType):
        one, other = one.element, other.element
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return False
    ranks_fit = one.shape is None or other.shape is None or len(one.shape) == len(other.shape)
    return one.type is other.type and ranks_fit


def is_tensor(type_: RegisterType, *, axes: int) -> bool:
    """Tell whether a register of a type may hold an array of so many axes."""
    return isinstance(type_, TensorType) and (type_.shape is None or len(type_.shape) == axes)


def type_text(type_: RegisterType) -> str:
    """Return a type as people write it: "sequence of FLOAT32[?, 3]"."""
    if isinstance(type_, TensorType):
        sizes = "..." if type_.shape is None else ", ".join("?" if s is None else str(s) for s in type_.shape)
        return f"{type_.type.name}[{sizes}]"
    kind = "sequence" if isinstance(type_, SequenceType) else "optional"
    return f"{kind} of {type_text(type_.element)}"
