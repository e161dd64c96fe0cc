"""Rows that can't be used: each is dropped alone, counted and logged, and everything else goes on.

A row gets this far only by a fault of ours or of the disk; it would otherwise end the agent, and end it again
after every restart. Its content isn't logged: it may be an event.
"""

import logging
import sqlite3
import traceback

from services.device_agent.store.values import add_counters

_log = logging.getLogger("isthmus.agent")

COUNTER = "bad_row_count"
"""Counter of the rows dropped since the store was made."""

BAD_ROW = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""What handling a row raises when the row is at fault. Errors of the cloud, the disk and the store aren't."""


def note_bad_row(connection: sqlite3.Connection, what: str, error: Exception) -> None:
    """Count and log a row that is being dropped; `what` says which, without its content."""
    add_counters(connection, bad_row_count=1)
    # Where, and not the text of the error, which may quote the row.
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    _log.error("%s can't be used and is dropped: %s", what, type(error).__name__, extra={"place": place})
