"""Data of constants in files beside the model: opened inside its folder, read within their bounds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from onnx import TensorProto

from libs.common.errors import Invalid
from libs.common.sizes import size_text
from services.engine.domain.limits import check_external_path
from services.engine.reading.limits import MOST_BYTES, shown

_KEYS = ("location", "offset", "length", "checksum", "basepath")
_LONGEST_NUMBER = 20
_CHUNK = 1 << 20


class ExternalFiles:
    """The files in one folder; None: the model may have none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._checksums: dict[str, str] = {}

    def read(self, tensor: TensorProto, size: int, what: str) -> bytes:
        """Return the bytes of a tensor that should have `size`; `what` names it in errors.

        Raises Invalid for a file that isn't there, lies elsewhere or is a link, for a place outside of it,
        and for a file that its checksum doesn't match.
        """
        fields = _fields(tensor, what)
        try:
            path = PurePosixPath(check_external_path(fields.get("location", "")))
        except Invalid as error:
            raise Invalid(f"{what}: {error}") from error
        if self._folder is None:
            raise Invalid(
                f"{what} keeps its data in the file {shown(str(path))}, which did not come with the model; "
                "send it along, or save the model as one file (onnx.save with save_as_external_data=False)"
            )
        with _opened(self._folder, path, what) as descriptor:
            whole = os.fstat(descriptor).st_size
            offset = _number(fields, "offset", 0, what)
            length = _number(fields, "length", max(whole - offset, 0), what)
            if offset + length > whole:
                raise Invalid(
                    f"{what} is at bytes {offset} to {offset + length} of {shown(str(path))}, which has "
                    f"{whole}"
                )
            if length != size:
                raise Invalid(
                    f"{what} takes {size_text(size)}, but {size_text(length)} of {shown(str(path))} are "
                    "its own"
                )
            if "checksum" in fields:
                self._verify(descriptor, str(path), fields["checksum"], what)
            return _read(descriptor, offset, length, what)

    def _verify(self, descriptor: int, path: str, wanted: str, what: str) -> None:
        """Hold a file against its SHA-1: ONNX's choice, which tells damage, not malice."""
        if path not in self._checksums:
            digest = hashlib.sha1(usedforsecurity=False)
            offset = 0
            while chunk := os.pread(descriptor, _CHUNK, offset):
                digest.update(chunk)
                offset += len(chunk)
            self._checksums[path] = digest.hexdigest()
        if self._checksums[path] != wanted.strip().lower():
            raise Invalid(f"{what}: the file {shown(path)} is damaged: its checksum isn't {shown(wanted)}")


def _fields(tensor: TensorProto, what: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in fields:
            raise Invalid(f"{what}: {shown(entry.key)} of its file is given twice")
        if entry.key in _KEYS:
            fields[entry.key] = entry.value
    return fields


def _number(fields: dict[str, str], key: str, default: int, what: str) -> int:
    text = fields.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise Invalid(f"{what}: {key} of its data is {shown(text)}, not a number of bytes")
    return int(text)


@contextlib.contextmanager
def _opened(folder: Path, path: PurePosixPath, what: str) -> Iterator[int]:
    """Open a file step by step, so that no part of its path is a link."""
    steps = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        for part in path.parts[:-1]:
            steps.append(
                os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=steps[-1])
            )
        # A pipe of that name must not make anybody wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        steps.append(os.open(path.parts[-1], flags, dir_fd=steps[-1]))
        status = os.fstat(steps[-1])
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"{what}: {shown(str(path))} is no ordinary file")
        if status.st_size > MOST_BYTES:
            raise Invalid(
                f"{what}: the file {shown(str(path))} has {size_text(status.st_size)}; at most "
                f"{size_text(MOST_BYTES)} are allowed"
            )
        yield steps[-1]
    except OSError as error:
        raise Invalid(
            f"{what} keeps its data in {shown(str(path))}, which can't be opened in the model's folder "
            f"({os.strerror(error.errno or 0)}); links aren't followed"
        ) from error
    finally:
        for descriptor in steps:
            os.close(descriptor)


def _read(descriptor: int, offset: int, length: int, what: str) -> bytes:
    parts = []
    while length:
        chunk = os.pread(descriptor, min(length, 1 << 30), offset)
        if not chunk:
            raise Invalid(f"{what}: its file became shorter while it was read")
        parts.append(chunk)
        offset, length = offset + len(chunk), length - len(chunk)
    return b"".join(parts)
