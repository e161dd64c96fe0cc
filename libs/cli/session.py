"""Where the command speaks to: its settings, and a channel to the gateway that carries the API key."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import click
import grpc

from libs.cli.files import read_text
from libs.cli.output import Output
from libs.cli.tls import explain_connection, read_authority
from libs.common.client import error_from_rpc
from libs.common.errors import Error, Invalid, Unauthenticated, Unavailable
from libs.common.names import TenantName, check_id, shown
from libs.common.service_config import is_loopback_target
from libs.common.status import DETAILS_TRAILER
from libs.common.suggest import did_you_mean

if TYPE_CHECKING:
    from google.protobuf.message import Message

_SETTINGS = ("gateway", "api_key_file", "ca_file", "tenant", "keys_dir")
_PAGE = 1000
# Twice what a gateway passes on as it comes; how large a request may be the gateway says.
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_KEY_FORM = "it must be one line that reads isk_<16 characters>_<64 hex digits>"
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# What gRPC says where a connection breaks under a call, as UNAVAILABLE, UNKNOWN, CANCELLED or INTERNAL.
_BROKEN = re.compile(
    r"^(stream removed|socket closed|connection reset|broken pipe|end of (tcp )?stream|transport closed|"
    r"goaway|connection dropped|received rst_stream|received http2 error|recvmsg:|sendmsg:|cancelled$)",
    re.IGNORECASE,
)

# Reasons of an Unavailable that leave open whether the call was carried out.
_UNKNOWN_OUTCOMES = frozenset(
    {
        "CONNECTION_LOST",
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "CANCELLED",
        "UPSTREAM_UNREACHABLE",
        "SHUTTING_DOWN",
    }
)

Stub = TypeVar("Stub")
Reply = TypeVar("Reply")


def settings_file(named: str | None) -> Path | None:
    """Return the settings file to read: the one `named`, the local stack's or the user's, or None."""
    if named:
        return Path(named)
    home = Path(os.environ.get("ISTHMUS_HOME", "var"))
    for candidate in (home / "cli.json", user_settings_file()):
        if candidate.is_file():
            return candidate
    return None


def user_settings_file() -> Path:
    """Return where `isthmus login` writes."""
    return Path(os.environ.get("XDG_CONFIG_HOME", str(Path.home() / ".config"))) / "isthmus" / "cli.json"


def read_settings(path: Path | None) -> dict[str, str]:
    """Return the settings in `path`; paths in it are relative to its folder.

    Raises:
        Invalid: when it can't be read or holds something else than known settings.
    """
    if path is None:
        return {}
    try:
        found = json.loads(read_text(path, "settings file"))
    except Error as error:
        raise Invalid(error.message, reason="BAD_SETTINGS") from error
    except ValueError as error:
        raise Invalid(f"settings file {path}: {error}", reason="BAD_SETTINGS") from error
    if not isinstance(found, dict):
        raise Invalid(f"settings file {path}: must hold a JSON object", reason="BAD_SETTINGS")
    for key, value in found.items():
        if key not in _SETTINGS:
            hint = did_you_mean(key, _SETTINGS)
            raise Invalid(f"settings file {path}: unknown setting {key!r}{hint}", reason="BAD_SETTINGS")
        if not isinstance(value, str):
            raise Invalid(f"settings file {path}: {key} must be text", reason="BAD_SETTINGS")
    settings = cast("dict[str, str]", found)
    for key in ("api_key_file", "ca_file", "keys_dir"):
        if key in settings:
            settings[key] = str(path.parent / settings[key])
    return settings


@dataclass(slots=True)
class Settings:
    """Flags as given; `session()` fills the rest from the settings file and opens the channel."""

    gateway: str | None
    api_key: str
    """The key itself, as the environment gives it, or ""; it wins over `api_key_file`."""
    api_key_file: str | None
    ca_file: str | None
    tenant: str | None
    config_file: str | None
    timeout_s: float
    output: Output

    def _resolved(self, key: str, flag: str | None, default: str = "") -> str:
        return flag or read_settings(settings_file(self.config_file)).get(key, default)

    @property
    def tenant_name(self) -> TenantName:
        """The tenant to work in.

        Raises:
            Invalid: when it isn't an id.
        """
        return TenantName(check_id(self._resolved("tenant", self.tenant, "default"), "--tenant"))

    @property
    def keys_dir(self) -> Path:
        """Folder of the tenant's signing keys on this machine."""
        default = str(user_settings_file().parent / "keys")
        return Path(self._resolved("keys_dir", None, default)) / self.tenant_name.tenant

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session; it is closed at the end of the block.

        Raises:
            Invalid: when the settings are wrong.
            Unauthenticated: when there is no API key.
        """
        gateway = self._resolved("gateway", self.gateway, "127.0.0.1:7400")
        key = self._key()
        ca_file = self._resolved("ca_file", self.ca_file)
        options = [
            ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", 60_000),
        ]
        if ca_file:
            credentials = grpc.ssl_channel_credentials(read_authority(Path(ca_file)))
            channel = grpc.secure_channel(gateway, credentials, options)
        else:
            if not is_loopback_target(gateway):
                raise Invalid(
                    f"--gateway {gateway}: an API key is sent in the clear only to this machine; "
                    "give --ca-file for TLS"
                )
            channel = grpc.insecure_channel(gateway, options)
        with channel:
            metadata = (("authorization", f"Bearer {key}"), ("traceparent", _traceparent()))
            yield Session(channel, gateway, metadata, self, Path(ca_file) if ca_file else None)

    def _key(self) -> str:
        if self.api_key:
            return _checked_key(self.api_key.strip(), "ISTHMUS_API_KEY")
        path = self._resolved("api_key_file", self.api_key_file)
        if not path:
            raise Unauthenticated(
                "no API key; start a local stack with `make up`, run `isthmus login`, "
                "or set ISTHMUS_API_KEY_FILE",
                reason="NO_API_KEY",
            )
        try:
            text = read_text(Path(path), "API key file")
        except Error as error:
            raise Unauthenticated(error.message, reason="NO_API_KEY") from error
        return _checked_key(text.strip(), f"API key file {path}")


def _checked_key(key: str, where: str) -> str:
    """Return `key` if it can be sent at all; whether it is one the gateway says. Never repeats it."""
    if not key:
        raise Unauthenticated(f"{where}: is empty; {_KEY_FORM}", reason="NO_API_KEY")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise Unauthenticated(f"{where}: doesn't hold an API key; {_KEY_FORM}", reason="NO_API_KEY")
    return key


def _traceparent() -> str:
    """Return the trace (W3C Trace Context) of all calls of this command: a pipeline's, or one of its own."""
    given = os.environ.get("TRACEPARENT", "")
    return given if _TRACEPARENT.fullmatch(given) else f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


@dataclass(frozen=True, slots=True)
class Session:
    """An open channel to the gateway."""

    channel: grpc.Channel
    gateway: str
    metadata: tuple[tuple[str, str], ...]
    settings: Settings
    ca_file: Path | None = None
    """Whom TLS trusts; None without TLS."""

    @property
    def output(self) -> Output:
        """Where answers go."""
        return self.settings.output

    @property
    def tenant(self) -> TenantName:
        """The tenant to work in."""
        return self.settings.tenant_name

    def name(self, collection: str, given: str) -> str:
        """Return the full name of what `given` names by id or in full: "train" is "tenants/acme/jobs/train".

        Another tenant's full name is left as it is: whose it is the service says.

        Raises:
            Invalid: when it is a name, and not one of the collection.
        """
        parent = "" if collection == "nodes" else f"{self.tenant}/"
        return named(given, collection, parent)

    def call(
        self, method: Callable[..., Reply], request: Message, *, timeout_s: float | None = None
    ) -> Reply:
        """Call a unary stub method with the key and a deadline.

        Raises:
            Error: what the service answered, in our taxonomy.
        """
        try:
            return method(request, timeout=timeout_s or self.settings.timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self.explain(error) from error

    def stream(
        self, method: Callable[..., Iterator[Reply]], request: Message, *, timeout_s: float | None
    ) -> Iterator[Reply]:
        """Call a server-streaming stub method; None as timeout for one that a person ends.

        Raises:
            Error: what the service answered, in our taxonomy.
        """
        call = method(request, timeout=timeout_s, metadata=self.metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self.explain(error) from error
        finally:
            cast("grpc.Call", call).cancel()

    def explain(self, error: grpc.RpcError) -> Error:
        """Return an RPC's error in our taxonomy, saying which gateway couldn't be reached."""
        found = error_from_rpc(cast("grpc.aio.AioRpcError", error))
        said = any(key == DETAILS_TRAILER for key, _ in cast("grpc.Call", error).trailing_metadata() or ())
        if not said and _BROKEN.search(found.message):
            return Unavailable(f"the gateway at {self.gateway} went away", reason="CONNECTION_LOST")
        if isinstance(found, Unavailable) and not said:
            trouble = explain_connection(self.gateway, self.ca_file)
            if trouble:
                found.message = trouble
            elif "failed to connect" in found.message.lower():
                found.message = (
                    f"no gateway answers at {self.gateway}; is the stack up? (`make up`, `make status`)"
                )
        if found.reason == "TENANT_NOT_FOUND" and not self.settings.tenant:
            found.message += "; the key may be another tenant's: give --tenant or ISTHMUS_TENANT"
        return found

    def pages(
        self, method: Callable[..., Reply], request: Message, limit: int | None = None
    ) -> Iterator[Reply]:
        """Follow a List method's page tokens to the end, or until `limit` items have come and say so."""
        got = 0
        while limit is None or got < limit:
            request.page_size = _PAGE if limit is None else min(_PAGE, limit - got)  # type: ignore[attr-defined]
            reply = self.call(method, request)
            # A page may hold fewer than were asked for, and not be the last.
            got += _items(cast("Message", reply))
            yield reply
            request.page_token = reply.next_page_token  # type: ignore[attr-defined]
            if not request.page_token:  # type: ignore[attr-defined]
                return
        self.output.remark(f"… and more: {got} shown; leave out --limit, or raise it")


@contextmanager
def says_when_unknown(what: str) -> Iterator[None]:
    """Add `what`, which says what is known and what to do, to errors that leave a call's outcome open."""
    try:
        yield
    except Unavailable as error:
        if error.reason in _UNKNOWN_OUTCOMES:
            error.message += f"; {what}"
        raise


def named(given: str, collection: str, parent: str) -> str:
    """Return the full name of what `given` names, by its id under `parent` ("" or "tenants/t/") or in full.

    Raises:
        Invalid: when it has a "/", and isn't the full name of something in the collection.
    """
    if "/" not in given:
        return f"{parent}{collection}/{given}"
    form = re.escape(collection) + "/[^/]+"
    if not re.fullmatch(f"tenants/[^/]+/{form}" if parent else form, given):
        raise Invalid(
            f"{shown(given)} names nothing in {collection}; write its id, or {parent}{collection}/<id>",
            reason="BAD_NAME",
        )
    return given


def _items(page: Message) -> int:
    """Return how many items a List method's page holds: the length of its repeated field."""
    lists = [each.name for each in page.DESCRIPTOR.fields if each.is_repeated]
    return sum(len(getattr(page, name)) for name in lists)


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Open a session for a click command and hand it over as the first argument."""

    @functools.wraps(command)
    @click.pass_obj
    def run(settings: Settings, /, *args: object, **kwargs: object) -> None:
        with settings.session() as session:
            command(session, *args, **kwargs)

    return run
