"""Which files an ONNX model keeps its data in: read from the file itself, without the onnx package.

A walk over protobuf's wire format that only enters what may hold a tensor; the weights are stepped over.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

# Messages of onnx.proto, by number of field: which message each field holds.

_FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_DEEPEST = 100
"""As many messages in one another as protobuf reads."""
_MOST_FIELDS = 20_000_000


def external_files(model: Path) -> list[str]:
    """Return the paths, as the model names them, of files that it keeps data in; sorted, each once.

    A file that isn't ONNX, or is damaged, has none: the engine says what is wrong with it. Raises OSError
    when it can't be read.
    """
    if model.stat().st_size == 0:
        return []
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return sorted(set(_Walk(data).locations("model", 0, len(data), 0)))
        except (ValueError, IndexError):
            return []


class _Walk:
    """Raises ValueError or IndexError for what isn't protobuf."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._count = 0

    def locations(self, kind: str, start: int, end: int, depth: int) -> Iterator[str]:
        if depth > _DEEPEST:
            raise ValueError
        for number, low, high in self._fields(start, end):
            inner = _FIELDS[kind].get(number)
            if inner == "entry":
                entry = {key: self._data[a:b] for key, a, b in self._fields(low, high)}
                if entry.get(1) == b"location":
                    yield entry.get(2, b"").decode()
            elif inner is not None:
                yield from self.locations(inner, low, high, depth + 1)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield number, start and end of each field that holds bytes."""
        while start < end:
            self._count += 1
            if self._count > _MOST_FIELDS:
                raise ValueError
            tag, start = self._varint(start)
            match tag & 7:
                case 0:
                    _, start = self._varint(start)
                case 1:
                    start += 8
                case 5:
                    start += 4
                case 2:
                    length, start = self._varint(start)
                    if length > end - start:
                        raise ValueError
                    yield tag >> 3, start, start + length
                    start += length
                case _:
                    raise ValueError
        if start != end:
            raise ValueError

    def _varint(self, start: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self._data[start]
            start += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, start
            shift += 7
            if shift > 63:
                raise ValueError
