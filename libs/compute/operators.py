"""Python's operators, by the names that numpy's functions have."""

from __future__ import annotations

from typing import Any, Self


class Operators:
    """Gives a class operators; it says what each does in `_unary` and `_binary`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _unary(self, name: str, verb: str) -> Self:
        """Apply an atomic operator; `verb` is for messages."""
        raise NotImplementedError

    def _binary(self, name: str, x: Any, y: Any) -> Self:
        """Apply one of numpy's functions of two, given by name."""
        raise NotImplementedError

    def __neg__(self) -> Self:
        return self._unary("neg", "negate")

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self._unary("not", "invert")

    def __add__(self, other: Any) -> Self:
        return self._binary("add", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._binary("add", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary("subtract", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary("divide", other, self)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._binary("floor_divide", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._binary("remainder", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary("remainder", other, self)

    def __pow__(self, other: Any) -> Self:
        return self._binary("power", self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary("power", other, self)

    def __matmul__(self, other: Any) -> Self:
        return self._binary("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._binary("matmul", other, self)

    def __and__(self, other: Any) -> Self:
        return self._binary("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Self:
        return self._binary("bitwise_and", other, self)

    def __or__(self, other: Any) -> Self:
        return self._binary("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Self:
        return self._binary("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Self:
        return self._binary("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Self:
        return self._binary("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Self:
        return self._binary("left_shift", self, other)

    def __rlshift__(self, other: Any) -> Self:
        return self._binary("left_shift", other, self)

    def __rshift__(self, other: Any) -> Self:
        return self._binary("right_shift", self, other)

    def __rrshift__(self, other: Any) -> Self:
        return self._binary("right_shift", other, self)

    def __eq__(self, other: object) -> Any:
        return self._binary("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return self._binary("not_equal", self, other)

    def __lt__(self, other: Any) -> Self:
        return self._binary("less", self, other)

    def __le__(self, other: Any) -> Self:
        return self._binary("less_equal", self, other)

    def __gt__(self, other: Any) -> Self:
        return self._binary("greater", self, other)

    def __ge__(self, other: Any) -> Self:
        return self._binary("greater_equal", self, other)
