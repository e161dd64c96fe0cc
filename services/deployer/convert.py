"""Between messages and domain values: the only code that knows both, with `convert_tasks`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import (
    audit_pb2,
    blob_pb2,
    device_pb2,
    manifest_pb2,
    pull_pb2,
    push_index_pb2,
    release_pb2,
)
from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid
from libs.common.names import TenantName, VersionName, check_id
from libs.common.paging import decode_token, encode_token, page_size
from services.deployer.domain.feed import Batch
from services.deployer.domain.fleet import DeviceView, Enrolment
from services.deployer.domain.model import (
    AuditEntry,
    BlobRecord,
    BlobRef,
    Counts,
    Gate,
    Release,
    Stage,
    StageReport,
    StepStatus,
)
from services.deployer.domain.pull import Plan, Wish
from services.deployer.domain.release_rules import share_of
from services.deployer.domain.releases import NewRelease, ReleaseView

_DEFAULTS = Gate()
_LARGEST_SECONDS = 315_576_000_000
_LONGEST_ID = 128
LARGEST = 2**63 - 2
MAX_PAGE_BYTES = 3 * 1024 * 1024
"""Of one answer of a list, so that it stays below the limit of a message."""
_FRAMING_BYTES = 8
V = TypeVar("V")
M = TypeVar("M", bound=Message)


# ---- small things ----
def timestamp(time: datetime | None) -> Timestamp | None:
    """Return a time as a message; None stays None."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def time_of(message: Timestamp) -> datetime:
    """Return a message as a time in UTC."""
    return message.ToDatetime(UTC)


def span(message: Duration, field: str, default: timedelta = timedelta(0)) -> timedelta:
    """Return a duration, or `default` when it is absent or zero; raise Invalid naming `field`."""
    if not message.seconds and not message.nanos:
        return default
    if abs(message.seconds) > _LARGEST_SECONDS or abs(message.nanos) >= 1_000_000_000:
        raise Invalid(f"{field}: is not a valid duration", reason="BAD_DURATION", metadata={"field": field})
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def duration(value: timedelta) -> Duration:
    """Return a duration as a message."""
    message = Duration()
    message.FromTimedelta(value)
    return message


def fingerprint(request: Message) -> bytes:
    """Return what tells one create from another that bears the same request id."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def tenant_of(parent: str) -> str:
    """Return the tenant of `tenants/{t}`; raise Invalid."""
    return TenantName.parse(parent, "parent").tenant


def text_page(page_token: str, requested: int, field: str) -> tuple[str, int]:
    """Return after which id a list goes on, and how many to give; raise Invalid for a foreign token."""
    after = decode_token(page_token).get(field, "") if page_token else ""
    if (
        not isinstance(after, str)
        or not after.isprintable()
        or len(after) > _LONGEST_ID
        or (page_token and not after)
    ):
        raise _foreign_token()
    return after, page_size(requested)


def number_page(page_token: str, requested: int, field: str) -> tuple[int | None, int]:
    """Return below which number a list goes on, and how many to give; raise Invalid for a foreign token."""
    before = decode_token(page_token).get(field) if page_token else None
    if page_token and (type(before) is not int or not 0 <= before <= LARGEST):
        raise _foreign_token()
    return (before if isinstance(before, int) else None), page_size(requested)


def _foreign_token() -> Invalid:
    return Invalid(
        "page_token: is of another list; leave it empty for the first page",
        reason="BAD_PAGE_TOKEN",
        metadata={"field": "page_token"},
    )


def number(value: int) -> int:
    """Return an unsigned number, or the largest that a store can compare with."""
    return min(value, LARGEST)


def page(
    values: Sequence[V], write: Callable[[V], M], limit: int, field: str, key: Callable[[V], str | int]
) -> tuple[list[M], str]:
    """Return a page of a list as messages, and the token of the next page; empty when there is none.

    The page ends early where an answer would become too large, but holds at least one.
    """
    messages: list[M] = []
    room = MAX_PAGE_BYTES
    for value in values:
        message = write(value)
        room -= message.ByteSize() + _FRAMING_BYTES
        if room < 0 and messages:
            break
        messages.append(message)
    more = len(messages) in range(1, len(values)) or len(messages) == limit
    return messages, encode_token({field: key(values[len(messages) - 1])}) if more else ""


# ---- blobs ----
def signed_bytes(message: trust_pb2.Signed) -> bytes:
    """Return signed bytes for the domain, which only passes them on."""
    return message.SerializeToString(deterministic=True)


def signed(data: bytes) -> trust_pb2.Signed:
    """Return what `signed_bytes` made."""
    return trust_pb2.Signed.FromString(data)


def blob_ref(message: manifest_pb2.BlobRef) -> BlobRef:
    """Read a reference."""
    return BlobRef(message.digest, message.size_bytes)


def blob(value: BlobRef) -> manifest_pb2.BlobRef:
    """Write a reference."""
    return manifest_pb2.BlobRef(digest=value.digest, size_bytes=value.size_bytes)


def stat(value: BlobRecord) -> blob_pb2.StatBlobResponse:
    """Write what is known of a blob."""
    return blob_pb2.StatBlobResponse(
        blob=blob(value.blob), create_time=timestamp(value.create_time), pin_count=value.pin_count
    )


# ---- devices ----
def enrolment(request: device_pb2.EnrolRequest) -> Enrolment:
    """Read a request."""
    return Enrolment(
        request.token, request.device_id, request.public_key, request.proof, dict(request.attributes)
    )


def device(value: DeviceView) -> device_pb2.Device:
    """Write a device."""
    return device_pb2.Device(
        name=str(value.device.name),
        attributes=value.device.attributes,
        create_time=timestamp(value.device.create_time),
        last_seen_time=timestamp(value.device.last_seen_time),
        reported=value.device.reported,
        wanted=value.wanted,
        revoked=value.device.revoked,
        etag=str(value.device.revision),
        failures=[
            device_pb2.VersionFailure(
                version=str(failure.version),
                release=str(failure.release),
                reason=failure.reason,
                message=failure.message,
                event_time=timestamp(failure.time),
            )
            for failure in value.failures
        ],
    )


# ---- releases ----
def new_release(request: release_pb2.CreateReleaseRequest) -> NewRelease:
    """Read a request; raise Invalid for a malformed name, step or gate."""
    return NewRelease(
        tenant=tenant_of(request.parent),
        release_id=check_id(request.release_id, "release_id") if request.release_id else "",
        version=VersionName.parse(request.version, "version"),
        policy_json=request.policy_json,
        shares=tuple(share_of(p, i) for i, p in enumerate(request.steps_percent)) or (10_000,),
        gate=gate(request.gate),
        request_id=request.request_id,
        fingerprint=fingerprint(request),
    )


def gate(message: release_pb2.Gate) -> Gate:
    """Read a gate; what is absent takes the defaults, and a zero where it would make no sense."""
    confirmed, failed = message.HasField("confirmed_percent"), message.HasField("failed_percent")
    return Gate(
        confirmed_percent=message.confirmed_percent if confirmed else _DEFAULTS.confirmed_percent,
        failed_percent=message.failed_percent if failed else _DEFAULTS.failed_percent,
        min_report_count=message.min_report_count or _DEFAULTS.min_report_count,
        soak_time=span(message.soak_time, "gate.soak_time", _DEFAULTS.soak_time),
        step_timeout=span(message.step_timeout, "gate.step_timeout", _DEFAULTS.step_timeout),
    )


def gate_message(value: Gate) -> release_pb2.Gate:
    """Write a gate, with the defaults it took."""
    return release_pb2.Gate(
        confirmed_percent=value.confirmed_percent,
        failed_percent=value.failed_percent,
        min_report_count=value.min_report_count,
        soak_time=duration(value.soak_time),
        step_timeout=duration(value.step_timeout),
    )


def counts(value: Counts) -> release_pb2.Counts:
    """Write counts."""
    return release_pb2.Counts(
        targeted_count=value.targeted,
        downloaded_count=value.downloaded,
        verified_count=value.verified,
        staged_count=value.staged,
        activated_count=value.activated,
        confirmed_count=value.confirmed,
        failed_count=value.failed,
    )


def release(view: ReleaseView) -> release_pb2.Release:
    """Write a release."""
    value: Release = view.release
    return release_pb2.Release(
        name=str(value.name),
        version=str(value.version),
        policy_json=value.policy_json,
        steps_percent=[share / 100 for share in value.shares],
        gate=gate_message(value.gate),
        state=release_pb2.Release.State.ValueType(value.state.value),
        state_reason=view.reason,
        step_index=value.step_index,
        steps=[_step(step, view.counts) for step in value.steps],
        counts=counts(view.counts),
        create_time=timestamp(value.create_time),
        end_time=timestamp(value.end_time),
        creator=value.creator,
        etag=str(value.revision),
        failures=[
            release_pb2.FailureCount(reason=failure.reason, device_count=failure.devices)
            for failure in view.counts.failures
        ],
        late_failed_count=view.late_failed,
    )


def _step(step: StepStatus, now: Counts) -> release_pb2.StepStatus:
    return release_pb2.StepStatus(
        percent=step.share / 100,
        open_time=timestamp(step.open_time),
        close_time=timestamp(step.close_time),
        counts=counts(step.counts or now),
    )


# ---- pull, push, audit ----
def wish(request: pull_pb2.PlanRequest) -> Wish:
    """Read what a device asks with."""
    return Wish(
        tuple(request.profile), number(request.root_version), request.agent_version, request.python_version
    )


def plan(value: Plan) -> pull_pb2.PlanResponse:
    """Write what it gets."""
    return pull_pb2.PlanResponse(
        device_set=signed(value.device_set),
        manifests=[signed(manifest) for manifest in value.manifests],
        remove=value.remove,
        roots=[signed(root) for root in value.roots],
    )


def stage_report(message: pull_pb2.StageReport, index: int) -> StageReport:
    """Read a report; raise Invalid for a stage that isn't one."""
    known: Mapping[int, Stage] = {stage.value: stage for stage in Stage}
    if message.stage not in known:
        names = ", ".join(f"STAGE_{stage.name}" for stage in Stage)
        raise Invalid(
            f"reports[{index}].stage: {message.stage} is none; use one of {names}", reason="BAD_STAGE"
        )
    return StageReport(
        report_id=message.report_id,
        task=message.task,
        version=message.version,
        release=message.release,
        stage=known[message.stage],
        failure_reason=message.failure_reason,
        failure_message=message.failure_message,
    )


def batch(value: Batch) -> push_index_pb2.WatchResponse:
    """Write changes of the push index."""
    return push_index_pb2.WatchResponse(
        revision=value.revision,
        changes=[
            push_index_pb2.DeviceChange(
                device=change.device, wanted_digest=change.wanted_digest, revoked=change.revoked
            )
            for change in value.changes
        ],
    )


def audit_entry(value: AuditEntry) -> audit_pb2.AuditEntry:
    """Write an entry."""
    return audit_pb2.AuditEntry(
        sequence=value.sequence,
        event_time=timestamp(value.event_time),
        actor=value.actor,
        action=value.action,
        resource=value.resource,
        detail=value.detail,
    )
