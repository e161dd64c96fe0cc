"""What the command prints: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from libs.cli.files import error_from_os

if TYPE_CHECKING:
    from rich.table import Table

_INT64 = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
# Readers that hold numbers as doubles (JavaScript, jq) are exact up to here.
_EXACT = 2**53 - 1
# Between two columns of a table.
_GAP = 2
# What steers a terminal, breaks a line or turns its direction: C0, DEL, C1, line separators, bidi controls.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# How long words may be that tables keep whole, tried one after another.
_WORDS = (32, 24, 20, 16, 12, 10, 8)


def as_dict(message: Message) -> dict[str, object]:
    """Return `message` as JSON-able values under its field names, zero values included.

    64-bit integers are numbers up to 2^53 - 1 and text beyond.
    """
    found = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {str(key): value for key, value in _numbers(message.DESCRIPTOR, found).items()}


def _numbers(descriptor: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Turn 64-bit integers, which protobuf's JSON quotes, into numbers where every reader has them exact."""
    for name, field in descriptor.fields_by_name.items():
        if name not in value:
            continue
        found = value[name]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            value[name] = {key: _number(inner, member) for key, member in found.items()}
        elif isinstance(found, list):
            value[name] = [_number(field, member) for member in found]
        else:
            value[name] = _number(field, found)
    return value


def _number(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        # What has a form of its own in JSON, such as a Timestamp, is text already.
        return _numbers(field.message_type, value) if isinstance(value, dict) else value
    if field.cpp_type in _INT64 and isinstance(value, str) and abs(int(value)) <= _EXACT:
        return int(value)
    return value


def plain(text: str) -> str:
    r"""Return text with control characters as Python writes them: an escape is "\x1b", a newline "\n".

    Names come out of files and services of anybody's making: what they hold isn't for the terminal to obey.
    """
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def plain_lines(text: str) -> str:
    """Return a text of several lines, each as `plain` has it but for tabs.

    Those after the first are indented: none passes for a line of the command's own.
    """
    return "\n  ".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def _cell(value: object) -> str:
    """Return what a cell shows: a tuple of lines, or one."""
    return "\n".join(plain(str(line)) for line in value) if isinstance(value, tuple) else plain(str(value))


def _json(value: object, indent: int | None = None) -> str:
    """Return JSON; of control characters `json` itself escapes C0 alone."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # Its own line breaks are no part of texts, in which all C0 are escaped already.
    return _CONTROL.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def counted(count: int, noun: str) -> str:
    """Return how many of a thing there are: "1 node", "1,200 nodes"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: float) -> str:
    """Return a size for people: 1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """Return a duration for people: 0.0042 → "4.2 ms", 95 → "1 m 35 s"."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def human_time(moment: datetime) -> str:
    """Return an aware moment in UTC to the second, or "-" for the epoch (an unset protobuf timestamp)."""
    if moment.timestamp() == 0:
        return "-"
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's answer goes. With `as_json`, exactly one JSON value (or one a line for streams).

    Texts may hold what a model or a service says: control characters in them are escaped here, newlines too.
    A cell of several lines is a tuple of them.
    """

    as_json: bool = False

    def message(
        self,
        message: Message,
        rows: Iterable[tuple[str, object]],
        *,
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Print one resource: `message` as JSON, or `rows` (label, value) as a two-column table.

        Args:
            message: the resource.
            rows: what people see of it.
            more: what JSON says beside the message's own fields.
        """
        if self.as_json:
            self._print_json(as_dict(message) | dict(more or {}))
            return
        self.rows(rows)

    def rows(self, rows: Iterable[tuple[str, object]]) -> None:
        """Print labels and values as a two-column table."""
        from rich.table import Table  # takes 0.1 s, and most commands print none

        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for label, value in rows:
            table.add_row(_cell(label), _cell(value))
        self._print(table)

    def messages(
        self, messages: Sequence[Message], columns: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Print a list: the messages as a JSON array, or `rows` under `columns` as a table."""
        if self.as_json:
            self._print_json([as_dict(message) for message in messages])
            return
        self.table(columns, rows)

    def values(self, values: Mapping[str, object], *lines: str) -> None:
        """Print `values` as a JSON object, or `lines` for people."""
        if self.as_json:
            self._print_json(dict(values))
        else:
            self.say(*lines)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
    ) -> None:
        """Print `rows` under `columns`; "(none)" when there are none."""
        from rich.table import Table

        columns = [plain(column) for column in columns]
        cells = [[_cell(cell) for cell in row] for row in rows]
        if not cells:
            self.say("(none)")
            return
        table = Table(
            box=None, pad_edge=False, header_style="bold", title=title and plain(title), title_justify="left"
        )
        for column, width in zip(columns, _widths(columns, cells, self._width()), strict=True):
            table.add_column(column, overflow="fold", width=width)
        for row in cells:
            table.add_row(*row)
        self._print(table)

    def line(self, value: Mapping[str, object]) -> None:
        """Print one value of a stream as a line of JSON, whatever the form chosen."""
        _write(_json(value) + "\n")

    def say(self, *lines: str) -> None:
        """Print lines for people; nothing with `as_json`."""
        if not self.as_json:
            _write("".join(plain(line) + "\n" for line in lines))

    def raw(self, data: bytes) -> None:
        """Print bytes as they are, at once."""
        _write_bytes(data)

    def note(self, text: str) -> None:
        """Print progress or a remark for people to stderr; nothing with `as_json`."""
        if not self.as_json:
            sys.stderr.write(plain_lines(text) + "\n")
            sys.stderr.flush()

    def remark(self, text: str) -> None:
        """Print to stderr what also programs must know of an answer; a JSON object with `as_json`."""
        line = _json({"warning": text}) if self.as_json else plain_lines(text)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def error(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        """Print an error to stderr."""
        if self.as_json:
            error = {"reason": reason, "message": message, "metadata": dict(metadata or {})}
            sys.stderr.write(_json({"error": error}) + "\n")
        else:
            sys.stderr.write(f"error: {plain_lines(message)}\n")

    @staticmethod
    def _print_json(value: object) -> None:
        _write(_json(value, indent=2) + "\n")

    @staticmethod
    def _print(table: Table) -> None:
        from rich.console import Console

        out: TextIO = sys.stdout
        # Cells are what services and people say: neither markup nor emoji codes are theirs to write.
        console = Console(
            file=out,
            width=Output._width(),
            highlight=False,
            soft_wrap=False,
            markup=False,
            emoji=False,
        )
        with console.capture() as capture:
            console.print(table)
        _write(capture.get())

    @staticmethod
    def _width() -> int:
        """Return the width of tables: the terminal's.

        Where there is none, cells are printed whole, so that grep and scripts see what a wide one would show.
        """
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else 220


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the columns' widths, so that a narrow terminal breaks lines between words.

    Headings are never broken within one, cells only where there is no room for their longest words.
    """
    from rich.cells import cell_len

    texts = [[column, *(row[index] for row in rows)] for index, column in enumerate(columns)]
    wanted = [max(cell_len(line) for text in each for line in text.split("\n")) for each in texts]
    heads = [_longest_word([column]) for column in columns]
    words = [_longest_word(each) for each in texts]
    room = width - _GAP * (len(columns) - 1)
    found = heads
    for most in _WORDS:
        least = [max(head, min(word, most)) for head, word in zip(heads, words, strict=True)]
        if sum(least) <= room:
            found = least
            break
    # What is left goes to those first that need the least of it.
    left = room - sum(found)
    for index in sorted(range(len(columns)), key=lambda index: wanted[index] - found[index]):
        more = max(0, min(left, wanted[index] - found[index]))
        found[index] += more
        left -= more
    return found


def _longest_word(texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(word) for text in texts for word in text.split()), default=1)


def _write(text: str) -> None:
    """Write to the standard output, at once.

    Raises:
        BrokenPipeError: when its reader has gone.
        Error: when it can't be written, such as a file on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise error_from_os(error, "standard output") from error


def _write_bytes(data: bytes) -> None:
    """Write bytes to the standard output, at once; raises as `_write`."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise error_from_os(error, "standard output") from error
