"""numpy's archives of arrays, `*.npz`: read without numpy, within bounds, and nothing they hold is run."""

from __future__ import annotations

import array
import ast
import itertools
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from libs.cli.files import error_from_os
from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.sizes import size_text

MOST_BYTES = 64 * 1024 * 1024
"""Of all arrays of an archive, and of its file: twice what a gateway passes on as it comes."""
_MOST_ARRAYS = 1024
_LONGEST_HEADER = 10_000
_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK"
# What numpy calls each element without its byte order, and how people say it.
_LETTERS: Mapping[str, str] = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_NAMES: Mapping[str, str] = {
    "?": "bool",
    "b": "int8",
    "h": "int16",
    "i": "int32",
    "q": "int64",
    "B": "uint8",
    "H": "uint16",
    "I": "uint32",
    "Q": "uint64",
    "e": "float16",
    "f": "float32",
    "d": "float64",
}
# Unsigned numbers of each size, for `array` and `memoryview`.
_WORDS: Mapping[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Array:
    """An array out of an archive.

    Attributes:
        letter: what `struct` calls its elements.
        shape: of it.
        data: little-endian, in row-major order.
    """

    letter: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    @property
    def type_name(self) -> str:
        """What numpy calls its elements: "float32"."""
        return numpy_name(self.letter)


def numpy_name(letter: str) -> str:
    """Return what numpy calls elements of `struct`'s letter: "float32" for "f"."""
    return _NAMES[letter]


def looks_like_archive(path: Path) -> bool:
    """Tell whether a file is an archive, or an array alone: by its name, or else by how it begins."""
    if path.suffix in (".npz", ".npy"):
        return True
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError:
        return False
    return head.startswith((_ZIP_MAGIC, _MAGIC))


def read_archive(path: Path, what: str) -> dict[str, Array]:
    """Return an archive's arrays by name; `what` says what it is, for messages.

    Raises:
        Invalid, NotFound: when it can't be read, is damaged or too large, or holds what is no array of
            booleans or numbers; it and the array are named.
    """
    where = f"{what} {path}"
    with _told(where):
        if path.stat().st_size > MOST_BYTES:
            raise _too_large(where)
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) == _MAGIC:
                raise _bad(f"{where}: is one array without a name; write numpy.savez(FILE, NAME=ARRAY)")
            return _arrays(file, where)


@contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise error_from_os(error, where) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise _bad(f"{where}: is no archive of numpy (*.npz), or is damaged or encrypted: {error}") from error


def _arrays(file: IO[bytes], where: str) -> dict[str, Array]:
    found: dict[str, Array] = {}
    left = MOST_BYTES
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MOST_ARRAYS:
            raise _bad(f"{where}: has {len(members)} arrays; at most {_MOST_ARRAYS} are read")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise _bad(f"{where}: array {shown(name)} is there twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _bad(f"{where}: array {shown(name)} is packed as numpy doesn't; write numpy.savez")
            with archive.open(member) as content:
                found[name] = _array(content, f"{where}: array {shown(name)}", left)
            left -= len(found[name].data)
    return found


def _array(file: IO[bytes], what: str, most: int) -> Array:
    order, letter, shape, is_fortran = _header(file, what)
    width = struct.calcsize(f"<{letter}")
    size = width * math.prod(shape)
    if size > most:
        raise _too_large(what)
    data = file.read(size + 1)
    if len(data) != size:
        raise _bad(f"{what}: has {'more' if len(data) > size else 'fewer'} bytes than its shape takes")
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        words = array.array(_WORDS[width], data)
        words.byteswap()
        data = words.tobytes()
    return Array(letter, shape, _row_major(data, width, shape) if is_fortran and size else data)


def _header(file: IO[bytes], what: str) -> tuple[str, str, tuple[int, ...], bool]:
    """Return byte order, letter and shape of an array, and whether it is in column-major order."""
    start = file.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC or len(start) < len(_MAGIC) + 2:
        raise _bad(f"{what}: is no array of numpy")
    form = "<H" if start[len(_MAGIC)] == 1 else "<I"
    prefix = file.read(struct.calcsize(form))
    length = struct.unpack(form, prefix)[0] if len(prefix) == struct.calcsize(form) else 0
    if not 0 < length <= _LONGEST_HEADER:
        raise _bad(f"{what}: is damaged: its header has {length} bytes")
    try:
        found: Any = ast.literal_eval(file.read(length).decode("latin-1").strip())
        descr, shape, is_fortran = found["descr"], found["shape"], found["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _bad(f"{what}: is damaged: its header can't be read") from error
    if not isinstance(shape, tuple) or not all(type(each) is int and 0 <= each < 2**63 for each in shape):
        raise _bad(f"{what}: is damaged: its shape can't be read")
    if not isinstance(descr, str) or descr[1:] not in _LETTERS:
        raise _bad(f"{what}: holds {_elements(descr)}; only booleans and plain numbers are read")
    return descr[0], _LETTERS[descr[1:]], shape, bool(is_fortran)


def _elements(descr: object) -> str:
    if not isinstance(descr, str):
        return "records"
    kinds = {"O": "Python objects", "U": "texts", "S": "texts", "c": "complex numbers"}
    return kinds.get(descr[1:2], f"elements of type {shown(descr)}")


def _row_major(data: bytes, width: int, shape: tuple[int, ...]) -> bytes:
    """Return elements that are there column by column row by row."""
    if len(shape) < 2:
        return data
    words = memoryview(data).cast(_WORDS[width])
    strides = [math.prod(shape[:axis]) for axis in range(len(shape))]
    rows = bytearray()
    for place in itertools.product(*map(range, shape[:-1])):
        start = sum(at * stride for at, stride in zip(place, strides, strict=False))
        rows += words[start :: strides[-1]].tobytes()
    return bytes(rows)


def _too_large(where: str) -> Invalid:
    return Invalid(
        f"{where}: takes more than {size_text(MOST_BYTES)}, and no request takes as much; send fewer rows at "
        "a time",
        reason="TOO_LARGE",
    )


def _bad(text: str) -> Invalid:
    return Invalid(text, reason="BAD_INPUT")
