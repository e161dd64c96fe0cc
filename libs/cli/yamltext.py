"""YAML read strictly into protobuf messages of the JSON form (camelCase), with the place of each fault.

What a message doesn't know is refused with the nearest name; values aren't bent to fit: `no`, `1.0` and `5`
are no texts, since YAML would have them mean something else. Anchors, tags and merge keys aren't read, so
that a small file can't stand for a large one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from google.protobuf.descriptor import FieldDescriptor

from libs.cli.values import parse_size
from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from libs.task.duration import MAX_SECONDS, parse_duration

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MAX_DEPTH = 32
_MAX_DOCUMENTS = 1000
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,19})", re.ASCII)
_SECONDS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s", re.ASCII)
_KINDS = {"str": "text", "int": "a number", "float": "a number", "bool": "true or false", "null": "nothing"}
_RANGES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}

Special = Callable[[Any, yaml.Node, str], None]


@dataclass(frozen=True, slots=True)
class Text:
    """A text and the name of the file that it came from, for messages."""

    name: str
    text: str

    def fault(self, mark: Any, path: str, message: str) -> Invalid:
        """Return the error at a place of the text; `path` is that within the document."""
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        where = f"{self.name}:{line}:{column}"
        return Invalid(
            f"{where}: {path}: {message}" if path else f"{where}: {message}",
            reason="BAD_YAML",
            metadata={"file": self.name, "line": str(line), "column": str(column), "path": path},
        )

    def documents(self) -> list[yaml.Node]:
        """Return the documents of the text that hold something.

        Raises:
            Invalid: for text that is no YAML, is too deep, or has anchors, tags or too many documents.
        """
        try:
            self._look_through()
            found = [node for node in yaml.compose_all(self.text, yaml.SafeLoader) if not is_null(node)]
        except yaml.MarkedYAMLError as error:
            said = error.problem or error.context or "is no YAML"
            raise self.fault(error.problem_mark or error.context_mark, "", f"is no YAML: {said}") from error
        except yaml.YAMLError as error:
            raise Invalid(f"{self.name}: is no YAML: {error}", reason="BAD_YAML") from error
        return found

    def _look_through(self) -> None:
        """Refuse, before anything is built, what would take long or go deep."""
        depth = documents = 0
        for event in yaml.parse(self.text, yaml.SafeLoader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > _MAX_DOCUMENTS:
                    raise self.fault(
                        event.start_mark, "", f"more than {_MAX_DOCUMENTS} documents; use several files"
                    )
            elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise self.fault(event.start_mark, "", "anchors and aliases aren't read; write the value out")
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _MAX_DEPTH:
                    raise self.fault(event.start_mark, "", f"deeper than {_MAX_DEPTH} levels")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            tag = getattr(event, "tag", None)
            if tag:
                raise self.fault(event.start_mark, "", f"the tag {shown(str(tag))} isn't read; leave it out")

    def members(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return a mapping's values with their keys' nodes, by key.

        Raises:
            Invalid: when it is none, a key is no text, or comes twice.
        """
        if not isinstance(node, yaml.MappingNode):
            raise self.fault(
                node.start_mark, path, f"must be a mapping of names to values, not {kind_of(node)}"
            )
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.fault(key.start_mark, path, "a name must be text")
            if key.value in found:
                raise self.fault(key.start_mark, path, f"{shown(key.value)} comes twice")
            found[key.value] = key, value
        return found

    def string(self, node: yaml.Node, path: str) -> str:
        """Return a text.

        Raises:
            Invalid: when it is something else, also what YAML takes for a number or a truth value.
        """
        if not isinstance(node, yaml.ScalarNode):
            raise self.fault(node.start_mark, path, f"must be text, not {kind_of(node)}")
        if node.tag != _TAG + "str":
            raise self.fault(
                node.start_mark, path, f'must be text, not {kind_of(node)}; put it in quotes: "{node.value}"'
            )
        return str(node.value)


def is_null(node: yaml.Node) -> bool:
    """Tell whether nothing is written there."""
    return bool(node.tag == _TAG + "null")


def kind_of(node: yaml.Node) -> str:
    """Return what a node is, for people."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return _KINDS.get(node.tag.removeprefix(_TAG), "a date")


class Filler:
    """Fills messages from nodes of one text.

    Args:
        text: where the nodes come from.
        special: reads further names than the fields of a message, by its full name and the name.
    """

    def __init__(self, text: Text, special: Mapping[tuple[str, str], Special] | None = None) -> None:
        self._text = text
        self._special = special or {}

    def fill(self, message: Message, node: yaml.Node, path: str) -> None:
        """Set the fields of `message` that the node names.

        Raises:
            Invalid: for the first fault, with its place.
        """
        if is_null(node):
            return
        full = message.DESCRIPTOR.full_name
        if full == "google.protobuf.Duration":
            self._duration(message, node, path)
            return
        fields = {field.json_name: field for field in message.DESCRIPTOR.fields}
        special = {name: read for (owner, name), read in self._special.items() if owner == full}
        for name, (key, value) in self._text.members(node, path).items():
            inner = f"{path}.{name}"
            if name in special:
                special[name](message, value, inner)
            elif name in fields:
                self._field(message, fields[name], value, inner)
            else:
                known = (*fields, *special)
                hint = did_you_mean(name, known) or f"; there are {', '.join(sorted(known))}"
                raise self._text.fault(key.start_mark, path, f"unknown field {shown(name)}{hint}")

    def _field(self, message: Message, field: Any, node: yaml.Node, path: str) -> None:
        if is_null(node):
            return
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            target = getattr(message, field.name)
            for name, (_, value) in self._text.members(node, path).items():
                target[name] = self._scalar(kind.fields_by_name["value"], value, f"{path}.{name}")
        elif field.is_repeated:
            if not isinstance(node, yaml.SequenceNode):
                raise self._text.fault(node.start_mark, path, f"must be a list, not {kind_of(node)}")
            target = getattr(message, field.name)
            for index, value in enumerate(node.value):
                inner = f"{path}[{index}]"
                if kind is not None:
                    self.fill(target.add(), value, inner)
                else:
                    target.append(self._scalar(field, value, inner))
        elif kind is not None:
            target = getattr(message, field.name)
            target.SetInParent()
            self.fill(target, node, path)
        else:
            setattr(message, field.name, self._scalar(field, node, path))

    def _scalar(self, field: Any, node: yaml.Node, path: str) -> object:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return self._text.string(node, path)
        if not isinstance(node, yaml.ScalarNode):
            raise self._text.fault(node.start_mark, path, f"must be a single value, not {kind_of(node)}")
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            if node.tag != _TAG + "bool" or node.value.lower() not in ("true", "false"):
                raise self._text.fault(
                    node.start_mark, path, f"must be true or false, not {shown(node.value)}"
                )
            return node.value.lower() == "true"
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            names = [value.name for value in field.enum_type.values if value.number]
            if node.value not in names:
                hint = did_you_mean(node.value, names) or f"; there are {', '.join(names)}"
                raise self._text.fault(node.start_mark, path, f"unknown value {shown(node.value)}{hint}")
            return field.enum_type.values_by_name[node.value].number
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            return self._real(node, path)
        return self._whole(field, node, path)

    def _real(self, node: yaml.Node, path: str) -> float:
        try:
            value = float(node.value)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self._text.fault(node.start_mark, path, f"must be a number, not {shown(node.value)}")
        return value

    def _whole(self, field: Any, node: yaml.Node, path: str) -> int:
        text = node.value
        if _WHOLE.fullmatch(text):
            value = int(text)
        elif field.json_name.endswith("Bytes"):
            try:
                value = parse_size(text)
            except Invalid as error:
                raise self._text.fault(node.start_mark, path, error.message) from error
        else:
            raise self._text.fault(node.start_mark, path, f"must be a whole number, not {shown(text)}")
        least, most = _RANGES[field.cpp_type]
        if not least <= value <= most:
            # What the message can hold isn't what the service takes: that says the service.
            said = f"must be at least {least}, not {value}" if value < least else f"{value} is far too large"
            raise self._text.fault(node.start_mark, path, said)
        return value

    def _duration(self, message: Any, node: yaml.Node, path: str) -> None:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        match = _SECONDS.fullmatch(text)
        try:
            seconds = float(match[1]) if match else parse_duration(text)
            if seconds > MAX_SECONDS:
                raise ValueError
            message.FromMicroseconds(round(seconds * 1e6))
        except (Invalid, ValueError) as error:
            raise self._text.fault(
                node.start_mark,
                path,
                f'must be a duration such as "90s", "1.5s", "5m" or "12h", not {shown(text)}',
            ) from error
