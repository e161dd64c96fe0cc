"""Between `types` and etcd's messages; what etcd would refuse is refused here, with a message that helps."""

from collections.abc import Sequence
from typing import Any

from etcd_stubs import kv_pb2, rpc_pb2

from libs.common.errors import Invalid
from libs.common.etcd.types import Compare, Delete, Event, Get, KeyValue, Op, Put
from libs.common.names import shown

MAX_TXN_OPERATIONS = 128
"""etcd's bound on each of a transaction's three lists (its flag `--max-txn-ops`)."""
MAX_REQUEST_BYTES = 1536 * 1024
"""etcd's bound on what one request adds to its log (its flag `--max-request-bytes`)."""
# What etcd's log adds around a request: ids and, with authentication, a user's name.
_ENVELOPE_BYTES = 512
MAX_KEY_BYTES = 4096
MAX_TTL_S = 9_000_000_000
_INT64_MAX = 2**63 - 1

_TARGETS = {
    "mod_revision": rpc_pb2.Compare.MOD,
    "create_revision": rpc_pb2.Compare.CREATE,
    "version": rpc_pb2.Compare.VERSION,
    "value": rpc_pb2.Compare.VALUE,
}


def key_bytes(key: str, field: str = "key") -> bytes:
    """Return a key as bytes.

    Raises:
        Invalid: when it is empty, longer than 4,096 bytes, or no text.
    """
    if not key:
        raise Invalid(f"{field}: a key can't be empty", reason="BAD_KEY", metadata={"field": field})
    return prefix_bytes(key, field)


def prefix_bytes(prefix: str, field: str = "prefix") -> bytes:
    """Return a prefix as bytes; as `key_bytes`, but it may be empty."""
    try:
        encoded = prefix.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{field}: {shown(prefix)} can't be written in UTF-8 ({error.reason})",
            reason="BAD_KEY",
            metadata={"field": field},
        ) from None
    if len(encoded) > MAX_KEY_BYTES:
        raise Invalid(
            f"{field}: {shown(prefix)} is {len(encoded)} bytes long; use at most {MAX_KEY_BYTES}",
            reason="BAD_KEY",
            metadata={"field": field},
        )
    return encoded


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """Return etcd's `key` and `range_end` for every key that begins with `prefix`, "" being all keys."""
    start = prefix_bytes(prefix)
    end = start.rstrip(b"\xff")
    return start or b"\0", end[:-1] + bytes([end[-1] + 1]) if end else b"\0"


def key_text(key: bytes) -> str:
    """Return a key as text; bytes that aren't UTF-8, which only others write, survive the way back."""
    return key.decode("utf-8", "surrogateescape")


def revision_number(revision: int, field: str, least: int = 0) -> int:
    """Return `revision` if it can be one; raise Invalid naming `field` otherwise."""
    if not least <= revision <= _INT64_MAX:
        raise Invalid(
            f"{field}: {revision} is not a revision; use {least} to {_INT64_MAX}",
            reason="BAD_REVISION",
            metadata={"field": field},
        )
    return revision


def key_value(message: kv_pb2.KeyValue) -> KeyValue:
    """Return the key that a message holds."""
    return KeyValue(
        key_text(message.key),
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
    )


def event(message: kv_pb2.Event) -> Event:
    """Return the change that a message holds."""
    return Event(
        "delete" if message.type == kv_pb2.Event.DELETE else "put",
        key_value(message.kv),
        key_value(message.prev_kv) if message.HasField("prev_kv") else None,
    )


def compare(condition: Compare) -> rpc_pb2.Compare:
    """Return the message of one condition."""
    values: dict[str, Any] = {condition.field: condition.equals}
    if condition.field != "value":
        revision_number(int(condition.equals), f"compare {condition.field} of {shown(condition.key)}")
    return rpc_pb2.Compare(
        result=rpc_pb2.Compare.EQUAL, target=_TARGETS[condition.field], key=key_bytes(condition.key), **values
    )


def operation(op: Op) -> rpc_pb2.RequestOp:
    """Return the message of one operation."""
    key = key_bytes(op.key)
    match op:
        case Put():
            put = rpc_pb2.PutRequest(key=key, value=op.value, lease=op.lease)
            return rpc_pb2.RequestOp(request_put=put)
        case Delete():
            end = prefix_range(op.key)[1] if op.prefix else b""
            delete = rpc_pb2.DeleteRangeRequest(key=key, range_end=end)
            return rpc_pb2.RequestOp(request_delete_range=delete)
        case Get():
            return rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=key))


def transaction(
    conditions: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op]
) -> rpc_pb2.TxnRequest:
    """Return the message of a transaction.

    Raises:
        Invalid: when it is over etcd's limits, writes a key twice (reason DUPLICATE_KEY) or has a bad key.
    """
    for name, things in (("compare", conditions), ("success", success), ("failure", failure)):
        if len(things) > MAX_TXN_OPERATIONS:
            raise Invalid(
                f"{name}: {len(things)} entries in one transaction; etcd takes {MAX_TXN_OPERATIONS} in each "
                "list: split it",
                reason="TRANSACTION_TOO_LARGE",
                metadata={"field": name},
            )
    _refuse_double_writes("success", success)
    _refuse_double_writes("failure", failure)
    request = rpc_pb2.TxnRequest(
        compare=[compare(condition) for condition in conditions],
        success=[operation(op) for op in success],
        failure=[operation(op) for op in failure],
    )
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES - _ENVELOPE_BYTES:
        raise Invalid(
            f"the transaction is {size} bytes large; etcd takes {MAX_REQUEST_BYTES - _ENVELOPE_BYTES}: split "
            "it, or keep large values as blobs",
            reason="TRANSACTION_TOO_LARGE",
        )
    return request


def fits(conditions: Sequence[Compare], success: Sequence[Op]) -> bool:
    """Tell whether etcd takes all this in one transaction.

    Raises:
        Invalid: when it is wrong in another way, as `transaction` says.
    """
    try:
        transaction(conditions, success, ())
    except Invalid as error:
        if error.reason != "TRANSACTION_TOO_LARGE":
            raise
        return False
    return True


def _refuse_double_writes(name: str, ops: Sequence[Op]) -> None:
    put = [op.key for op in ops if isinstance(op, Put)]
    deleted = [op for op in ops if isinstance(op, Delete)]
    seen: set[str] = set()
    for key in put:
        gone = any(key.startswith(op.key) if op.prefix else key == op.key for op in deleted)
        if key in seen or gone:
            raise Invalid(
                f"{name}: {shown(key)} is written twice in one transaction; keep one of the writes",
                reason="DUPLICATE_KEY",
                metadata={"field": name},
            )
        seen.add(key)


def found(response: rpc_pb2.ResponseOp) -> tuple[KeyValue, ...]:
    """Return what one operation of a transaction read."""
    return tuple(key_value(kv) for kv in response.response_range.kvs)
