"""Compares calls of the library with numpy's, and what runs at once with what is traced.

`samples` has the calls. numpy arrays in them are what is traced; everything else is known then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from libs.compute.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """A call of a function, by numpy's name for it."""

    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [_text(each) for each in self.args]
        words += [f"{name}={_text(each)}" for name, each in self.options.items()]
        return f"{self.name}({', '.join(words)})"


def _text(thing: Any) -> str:
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype}{list(thing.shape)}".replace(" ", "")
    if isinstance(thing, list | tuple):
        return "[" + ",".join(map(_text, thing)) + "]"
    return repr(thing)


def found(root: Any, name: str) -> Callable[..., Any]:
    """Return a function by its dotted name."""
    for part in name.split("."):
        root = getattr(root, part)
    function: Callable[..., Any] = root
    return function


def parts(result: Any) -> list[Any]:
    """Return the arrays in a result, in order; complex ones as two."""
    if isinstance(result, list | tuple):
        return [part for each in result for part in parts(each)]
    if hasattr(result, "real") and hasattr(result, "imag") and not isinstance(result, bool | int | float):
        array = result if not isinstance(result, np.generic) else np.asarray(result)
        if not isinstance(array, np.ndarray) or array.dtype.kind == "c":
            return [array.real, array.imag]
    return [result]


def arrays_in(things: Any) -> list[Array]:
    """Return the numpy arrays in arguments, in order."""
    if isinstance(things, np.ndarray):
        return [things]
    if isinstance(things, Mapping):
        return [array for each in things.values() for array in arrays_in(each)]
    return [array for each in things for array in arrays_in(each)] if isinstance(things, list | tuple) else []


def replaced(things: Any, new: Sequence[Tensor]) -> Any:
    """Return arguments with the arrays in them replaced, in order; `new` is used up."""
    rest = list(new)

    def walk(thing: Any) -> Any:
        if isinstance(thing, np.ndarray):
            return rest.pop(0)
        if isinstance(thing, Mapping):
            return {name: walk(each) for name, each in thing.items()}
        return type(thing)(map(walk, thing)) if isinstance(thing, list | tuple) else thing

    return walk(things)


def assert_same(ours: Any, theirs: Any, rtol: float = 1e-12, atol: float = 0.0) -> None:
    """Assert that two results are of the same types and shapes, and as near as their types allow."""
    left, right = parts(ours), parts(theirs)
    assert len(left) == len(right), f"{len(left)} arrays, not {len(right)}"
    for one, other in zip(left, right, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype, f"{one.dtype}, not {other.dtype}"
        assert one.shape == other.shape, f"shape {one.shape}, not {other.shape}"
        if one.dtype.kind != "f":
            np.testing.assert_array_equal(one, other)
            continue
        least = float(np.finfo(one.dtype).eps) * 8
        np.testing.assert_allclose(one, other, rtol=max(rtol, least), atol=atol)
