"""`python -m services.gateway admin-key`: makes the first key, with which all others are made.

It may run while a gateway does: it holds no lock, and a gateway looks keys up by itself.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.clock import Clock, SystemClock
from libs.common.config import ConfigError, HelpRequested, load
from libs.common.errors import AlreadyExists, Error
from libs.common.fsio import write_atomic
from libs.common.identity import GATEWAY
from libs.common.logs import setup_logging
from libs.common.names import check_id
from libs.common.rand import Randomness, SystemRandomness
from libs.common.sql import Database, migrate, open_engine
from services.gateway.domain.audit import AUDIT_LOG, key_created, tenant_created
from services.gateway.domain.keys import (
    KEY_ID_LENGTH,
    SECRET_BYTES,
    Key,
    Tenant,
    format_key,
    hash_secret,
    new_secret,
    split_key,
)
from services.gateway.sql_store import MIGRATIONS, SqlStore
from services.gateway.store import Store

_ACTOR = "admin-key"
"""In the audit log: whoever could write to the database."""
_OPERATOR = frozenset({"*"})
_DATABASE_VARIABLE = "ISTHMUS_GATEWAY_DATABASE_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminKeyConfig:
    """Settings of `admin-key`."""

    database_url: str = field(
        default="sqlite:///gateway.db", metadata={"help": "the gateway's database", "secret": True}
    )
    out: Path = field(
        default=Path("admin.key"), metadata={"help": "file to write the key to; only its owner may read it"}
    )
    tenant: str = field(
        default="default", metadata={"help": "the operator's tenant; made when it isn't there"}
    )


async def is_valid(store: Store, text: str, clock: Clock) -> bool:
    """Say whether a key's text works as an operator's key."""
    parts = split_key(text.strip())
    key = None if parts is None else await store.find_key(parts[0])
    if parts is None or key is None or key.revoked or not key.matches(parts[1]):
        return False
    return key.scopes >= _OPERATOR and (key.expire_time is None or clock.now() < key.expire_time)


async def ensure_admin_key(
    store: Store, out: Path, tenant: str, clock: Clock, randomness: Randomness
) -> bool:
    """Have `out` hold a working operator's key of a tenant; return whether a new one was needed.

    Raises:
        Invalid: when the tenant's id is malformed.
        Exhausted: when the disk is full.
    """
    check_id(tenant, "tenant")
    with suppress(AlreadyExists):
        tenant_created(_ACTOR, await store.create_tenant(Tenant(tenant, "", clock.now())))
    if await is_valid(store, await asyncio.to_thread(_read, out), clock):
        return False
    secret = new_secret(randomness.bytes(SECRET_BYTES))
    key = Key(randomness.id(KEY_ID_LENGTH), tenant, "admin", _OPERATOR, hash_secret(secret), clock.now())
    await store.create_key(key)
    key_created(_ACTOR, key)
    await asyncio.to_thread(_write, out, format_key(key.key_id, secret))
    return True


def _write(path: Path, key: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, f"{key}\n".encode(), mode=0o600)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except FileNotFoundError:
        return ""


@contextmanager
def _audit_log() -> Iterator[None]:
    """Write the audit log, and nothing else that is no warning, to stderr."""
    handler = setup_logging(GATEWAY, "WARNING")
    logging.getLogger(AUDIT_LOG).setLevel(logging.INFO)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


async def _run(config: AdminKeyConfig) -> None:
    engine = open_engine(config.database_url)
    await asyncio.to_thread(migrate, engine, MIGRATIONS)
    store = SqlStore(Database(engine))
    try:
        made = await ensure_admin_key(store, config.out, config.tenant, SystemClock(), SystemRandomness())
    finally:
        await store.close()
    said = "a new admin key is in" if made else "there is a working admin key in"
    print(f"{said} {config.out}")  # noqa: T201


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command; return the exit status."""
    try:
        # The environment of a gateway holds more settings; only its database matters here.
        known = {name: value for name, value in environ.items() if name == _DATABASE_VARIABLE}
        config = load(AdminKeyConfig, "gateway", argv, known)
        with _audit_log():
            asyncio.run(_run(config))
    except HelpRequested as text:
        print(text)  # noqa: T201
    except ConfigError as faults:
        print(faults, file=sys.stderr)  # noqa: T201
        return 2
    except Error as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0
