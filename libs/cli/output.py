"""What the command prints: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table


def as_dict(message: Message) -> dict[str, object]:
    """Return `message` as JSON-able values under its field names, zero values included."""
    found = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {str(key): value for key, value in found.items()}


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
    """Where a command's answer goes. With `as_json`, exactly one JSON value (or one a line for streams)."""

    as_json: bool = False

    def message(self, message: Message, rows: Iterable[tuple[str, object]]) -> None:
        """Print one resource: `message` as JSON, or `rows` (label, value) as a two-column table."""
        if self.as_json:
            self._print_json(as_dict(message))
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for label, value in rows:
            table.add_row(label, str(value))
        self._console().print(table)

    def messages(
        self, messages: Sequence[Message], columns: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Print a list: the messages as a JSON array, or `rows` under `columns` as a table."""
        if self.as_json:
            self._print_json([as_dict(message) for message in messages])
            return
        self.table(columns, rows)

    def values(self, values: Mapping[str, object], text: str) -> None:
        """Print `values` as a JSON object, or `text` for people."""
        if self.as_json:
            self._print_json(dict(values))
        else:
            self.say(text)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
    ) -> None:
        """Print `rows` under `columns`; "(none)" when there are none."""
        table = Table(
            *columns, box=None, pad_edge=False, header_style="bold", title=title, title_justify="left"
        )
        count = 0
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
            count += 1
        if count:
            self._console().print(table)
        else:
            self.say("(none)")

    def line(self, value: Mapping[str, object]) -> None:
        """Print one value of a stream as a line of JSON, whatever the form chosen."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print text for people; nothing with `as_json`."""
        if not self.as_json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print progress or a remark for people to stderr; nothing with `as_json`."""
        if not self.as_json:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def error(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        """Print an error to stderr."""
        if self.as_json:
            error = {"reason": reason, "message": message, "metadata": dict(metadata or {})}
            sys.stderr.write(json.dumps({"error": error}, ensure_ascii=False) + "\n")
        else:
            sys.stderr.write(f"error: {message}\n")

    @staticmethod
    def _print_json(value: object) -> None:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    @staticmethod
    def _console() -> Console:
        # Not a terminal: print whole cells, so that grep and scripts see what a wide terminal would show.
        out: TextIO = sys.stdout
        return Console(file=out, width=None if out.isatty() else 220, highlight=False, soft_wrap=False)
