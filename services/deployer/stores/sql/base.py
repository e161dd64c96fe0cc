"""What the parts of the SQL transaction share."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from libs.common.errors import AlreadyExists
from services.deployer.stores.sql import schema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Part:
    """A transaction over one connection."""

    def __init__(self, connection: Connection) -> None:
        """Work on `connection`, whose transaction the store begins and ends."""
        self._c = connection

    def _insert(self, table: Table, values: Mapping[str, Any], name: object) -> int:
        """Insert a row and return its first primary key; raise AlreadyExists naming `name`."""
        try:
            result = self._c.execute(table.insert(), dict(values))
        except IntegrityError:
            raise AlreadyExists(f"{name}: exists already") from None
        key = result.inserted_primary_key
        return key[0] if key is not None and isinstance(key[0], int) else 0

    def _upsert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """Return an insert that can say what to do when the key is taken; both dialects spell it alike."""
        if self._c.dialect.name == "postgresql":
            return postgresql.insert(table)
        return sqlite.insert(table)

    def _bump(self, what: str, tenant: str) -> None:
        insert = self._upsert(schema.revisions).values(what=what, tenant=tenant, value=1)
        grown = {"value": schema.revisions.c.value + 1}
        self._c.execute(insert.on_conflict_do_update(index_elements=["what", "tenant"], set_=grown))

    def _revision(self, what: str, tenant: str) -> int:
        table = schema.revisions
        value = self._c.scalar(select(table.c.value).where(table.c.what == what, table.c.tenant == tenant))
        return int(value or 0)

    def _count(self, table: Table, *where: Any) -> int:
        return int(self._c.scalar(select(func.count()).select_from(table).where(*where)) or 0)


@overload
def micros(time: datetime) -> int: ...
@overload
def micros(time: datetime | None) -> int | None: ...
def micros(time: datetime | None) -> int | None:
    """Return a time as it is stored: whole microseconds since 1970."""
    return None if time is None else (time - _EPOCH) // _MICROSECOND


@overload
def moment(value: int) -> datetime: ...
@overload
def moment(value: int | None) -> datetime | None: ...
def moment(value: int | None) -> datetime | None:
    """Return the time that `micros` stored."""
    return None if value is None else _EPOCH + value * _MICROSECOND


def dump(value: object) -> str:
    """Return a JSON value's one text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
