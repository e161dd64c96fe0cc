"""Objects of the scheduler written as YAML: apiVersion, kind, metadata and spec, several in a file.

`spec` is the message of the API in its JSON form. `metadata` holds what one may choose: the name, labels (of
jobs and queues), and the etag that the object must still have. Of the names of the object and of a job's
queue, the last part will do. A file of a job may come `from` a path on this machine instead of naming a blob.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.scheduler.v1 import object_pb2
from libs.cli.files import read_text
from libs.cli.yamltext import Filler, Text, is_null
from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean

if TYPE_CHECKING:
    import yaml

API_VERSION = "scheduler.isthmus/v1"
_MESSAGES = {"Job": object_pb2.Job, "Queue": object_pb2.Queue, "Node": object_pb2.Node}
_COLLECTIONS = {"Job": "jobs", "Queue": "queues", "Node": "nodes"}
_PARTS = ("apiVersion", "kind", "metadata", "spec")
_CHOSEN = ("name", "labels", "etag")
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this machine that a job's `file` stands for, once it is uploaded."""

    file: object_pb2.JobFile
    path: Path


@dataclass(frozen=True, slots=True)
class Object:
    """An object as it is wanted.

    Attributes:
        kind: "Job", "Queue" or "Node".
        wanted: the Job, Queue or Node; `metadata.name` is its last part, or "" for a job that names none.
        where: file and line.
        local: its files that must be uploaded first.
    """

    kind: str
    wanted: Any
    where: str
    local: tuple[LocalFile, ...] = ()

    @property
    def id(self) -> str:
        """The last part of its name."""
        return str(self.wanted.metadata.name)

    @property
    def shown(self) -> str:
        """What messages call it."""
        return f"{_COLLECTIONS[self.kind]}/{self.id}"


def read_objects(file: str, tenant: str) -> list[Object]:
    """Return the objects of a file, "-" for the standard input; names are those of `tenant` ("tenants/t").

    Raises:
        Invalid: for the first fault, with file, line and column; also when there is no object.
        NotFound: when the file isn't there.
    """
    text = _read(file)
    found = [
        _Reader(text, tenant, Path(file).parent if file != "-" else Path()).read(node)
        for node in text.documents()
    ]
    if not found:
        raise Invalid(f"{text.name}: holds no object", reason="BAD_YAML")
    return found


def _read(file: str) -> Text:
    if file != "-":
        return Text(file, read_text(Path(file), "file"))
    data = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise Invalid(f"standard input: is longer than {_MAX_BYTES} bytes", reason="TOO_LARGE")
    try:
        return Text("standard input", data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Invalid(f"standard input: isn't UTF-8 text at byte {error.start}", reason="NOT_TEXT") from error


class _Reader:
    """Reads one document."""

    def __init__(self, text: Text, tenant: str, folder: Path) -> None:
        self._text = text
        self._tenant = tenant
        self._folder = folder
        self._local: list[LocalFile] = []
        special = {("isthmus.scheduler.v1.JobFile", "from"): self._from}
        self._filler = Filler(text, special)

    def read(self, node: yaml.Node) -> Object:
        """Return the object of a document."""
        parts = self._text.members(node, "")
        for name, (key, _) in parts.items():
            if name == "status":
                raise self._text.fault(key.start_mark, "status", "is the scheduler's to say; leave it out")
            if name not in _PARTS:
                hint = did_you_mean(name, _PARTS) or f"; there are {', '.join(_PARTS)}"
                raise self._text.fault(key.start_mark, "", f"unknown field {shown(name)}{hint}")
        self._known(node, parts, "apiVersion", (API_VERSION,))
        kind = self._known(node, parts, "kind", tuple(_MESSAGES))
        wanted = _MESSAGES[kind]()
        if "metadata" in parts:
            self._metadata(wanted.metadata, parts["metadata"][1], kind)
        if kind != "Job" and not wanted.metadata.name:
            raise self._text.fault(node.start_mark, "metadata.name", f"is missing; name the {kind.lower()}")
        if "spec" in parts:
            wanted.spec.SetInParent()
            self._filler.fill(wanted.spec, parts["spec"][1], "spec")
        if isinstance(wanted, object_pb2.Job) and wanted.spec.queue and "/" not in wanted.spec.queue:
            wanted.spec.queue = f"{self._tenant}/queues/{wanted.spec.queue}"
        where = f"{self._text.name}:{node.start_mark.line + 1}"
        return Object(kind, wanted, where, tuple(self._local))

    def _known(
        self,
        node: yaml.Node,
        parts: dict[str, tuple[yaml.Node, yaml.Node]],
        name: str,
        known: tuple[str, ...],
    ) -> str:
        if name not in parts:
            raise self._text.fault(node.start_mark, name, f"is missing; write {name}: {known[0]}")
        value = parts[name][1]
        text = self._text.string(value, name)
        if text not in known:
            hint = did_you_mean(text, known) or f"; there is {', '.join(known)}"
            raise self._text.fault(value.start_mark, name, f"{shown(text)} is unknown{hint}")
        return text

    def _metadata(self, metadata: object_pb2.Metadata, node: yaml.Node, kind: str) -> None:
        if is_null(node):
            return
        parts = self._text.members(node, "metadata")
        for name, (key, _) in parts.items():
            if name not in _CHOSEN:
                given = {field.json_name for field in metadata.DESCRIPTOR.fields}
                said = (
                    "is the scheduler's to give; leave it out"
                    if name in given
                    else f"unknown field{did_you_mean(name, _CHOSEN) or '; there are ' + ', '.join(_CHOSEN)}"
                )
                raise self._text.fault(key.start_mark, f"metadata.{name}", said)
            if name == "labels" and kind == "Node":
                raise self._text.fault(
                    key.start_mark, "metadata.labels", "a node's aren't anybody's to set; leave them out"
                )
        self._filler.fill(metadata, node, "metadata")
        parent = "" if kind == "Node" else f"{self._tenant}/"
        prefix = f"{parent}{_COLLECTIONS[kind]}/"
        if "/" in metadata.name and not metadata.name.startswith(prefix):
            value = parts["name"][1]
            raise self._text.fault(
                value.start_mark,
                "metadata.name",
                f"{shown(metadata.name)} is no {kind.lower()} here; write its last part, or {prefix}…",
            )
        metadata.name = metadata.name.removeprefix(prefix)

    def _from(self, file: Any, node: yaml.Node, path: str) -> None:
        given = Path(self._text.string(node, path))
        try:
            found = (self._folder / given).is_file()
        except (OSError, ValueError):
            found = False
        if not found:
            raise self._text.fault(
                node.start_mark, path, f"there is no file {shown(str(self._folder / given))}"
            )
        self._local.append(LocalFile(file, self._folder / given))


def read_job(file: str, tenant: str) -> Object:
    """Return the one job of a file.

    Raises:
        Error: as `read_objects`, and when it holds something else.
    """
    found = read_objects(file, tenant)
    if len(found) != 1 or found[0].kind != "Job":
        raise Invalid(
            f"{found[0].where}: must hold one Job; several objects are for `isthmus apply -f`",
            reason="BAD_YAML",
        )
    return found[0]
