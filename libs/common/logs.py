"""Logs: one JSON object a line on stderr, with the trace it belongs to, and never a secret."""

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

from libs.common.tracing import current_ids

# Where a word begins in JSON, whose "\n" is a letter to a regular expression.
_START = r"(?:\b|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
# A net under the rule "secrets never reach a log": API keys, enrolment tokens, JWTs, private keys, and what
# follows "Bearer".
_SECRETS = re.compile(
    rf"({_START}isk_[A-Za-z0-9-]+_)[A-Za-z0-9_-]+"
    rf"|({_START}ise_)[0-9a-f]{{16,}}"
    r"|(eyJ[A-Za-z0-9_-]+\.)[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"
    r"|([Bb]earer )[A-Za-z0-9._~+/=-]{16,}"
    r"|(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*"
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def scrub(text: str) -> str:
    """Return `text` with whatever looks like a credential replaced by "***"."""
    return _SECRETS.sub(lambda match: next(g for g in match.groups() if g is not None) + "***", text)


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON; what a caller gave as `extra=` becomes fields of their own."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        ids = current_ids()
        if ids is not None:
            line["trace_id"], line["span_id"] = ids
        for key, value in vars(record).items():
            if key not in _STANDARD and key not in line:
                line[key] = value
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        return scrub(json.dumps(line, default=str, ensure_ascii=False))


def setup_logging(service: str, level: str = "INFO", stream: TextIO | None = None) -> logging.Handler:
    """Send every log of this process to `stream` (stderr unless told otherwise) as JSON lines.

    Returns:
        The handler, for `logging.getLogger().removeHandler` in tests.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, JsonFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    return handler
