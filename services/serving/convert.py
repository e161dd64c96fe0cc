"""Messages of isthmus.serving.v1 and the domain's types. Absent and zero take the default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.serving.v1 import model_pb2 as pb
from libs.common.blobs import BlobRef
from libs.common.errors import Invalid
from libs.common.names import ModelName, ModelVersionName, TenantName, check_version, shown
from libs.common.paging import decode_token, encode_token
from services.serving.domain.model import (
    Condition,
    Model,
    ModelKey,
    Platform,
    ServingConfig,
    State,
    Version,
)

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLATFORMS = {
    pb.ModelVersion.PLATFORM_ONNX: Platform.ONNX,
    pb.ModelVersion.PLATFORM_PLAN: Platform.PLAN,
}
_PLATFORM_NUMBERS = {platform: number for number, platform in _PLATFORMS.items()}
_STATES = {
    State.LOADING: pb.ModelVersion.STATE_LOADING,
    State.READY: pb.ModelVersion.STATE_READY,
    State.DRAINING: pb.ModelVersion.STATE_DRAINING,
    State.UNLOADED: pb.ModelVersion.STATE_UNLOADED,
    State.FAILED: pb.ModelVersion.STATE_FAILED,
}
_DEFAULTS = ServingConfig()


def tenant(parent: str) -> str:
    """Return the tenant that a parent names."""
    return TenantName.parse(parent, "parent").tenant


def key(name: str, field: str = "name") -> ModelKey:
    """Return the model that a name means; raise Invalid naming `field`."""
    parsed = ModelName.parse(name, field)
    return ModelKey(parsed.tenant, parsed.model)


def version_key(name: str) -> tuple[ModelKey, str]:
    """Return the model and the version that a name means."""
    parsed = ModelVersionName.parse(name)
    return ModelKey(parsed.tenant, parsed.model), parsed.version


def live_version(name: str) -> str:
    """Return the id of a version that is to take the traffic; "" for none named."""
    return check_version(name, "model.live_version") if name else ""


def config(message: pb.ServingConfig) -> ServingConfig:
    """Return how a model is to be served; raise Invalid naming a field out of range."""
    return ServingConfig(
        max_batch_rows=message.max_batch_rows or _DEFAULTS.max_batch_rows,
        max_batch_delay_s=_seconds(message.max_batch_delay),
        instance_count=message.instance_count or _DEFAULTS.instance_count,
        intra_op_thread_count=message.intra_op_thread_count or _DEFAULTS.intra_op_thread_count,
        queue_capacity=message.queue_capacity or _DEFAULTS.queue_capacity,
        queue_timeout_s=_seconds(message.queue_timeout) or _DEFAULTS.queue_timeout_s,
        kept_version_count=message.kept_version_count or _DEFAULTS.kept_version_count,
    )


def to_config(value: ServingConfig) -> pb.ServingConfig:
    """Return a configuration as a message."""
    return pb.ServingConfig(
        max_batch_rows=value.max_batch_rows,
        max_batch_delay=_duration(value.max_batch_delay_s),
        instance_count=value.instance_count,
        intra_op_thread_count=value.intra_op_thread_count,
        queue_capacity=value.queue_capacity,
        queue_timeout=_duration(value.queue_timeout_s),
        kept_version_count=value.kept_version_count,
    )


def _seconds(message: Duration) -> float:
    # One rounding, so that what was written is read back as the same.
    return (message.seconds * 1_000_000_000 + message.nanos) / 1e9


def _duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _timestamp(time: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(time)
    return message


def model(value: Model) -> pb.Model:
    """Return a model as a message."""
    return pb.Model(
        name=str(value.key),
        config=to_config(value.config),
        live_version=value.live,
        create_time=_timestamp(value.create_time),
        etag=value.etag if value.revision else "",
        unloaded=value.unloaded,
    )


def draft(request: pb.CreateModelVersionRequest, now: datetime) -> Version:
    """Return the version that a request asks for; raise Invalid naming what is wrong."""
    platform = _PLATFORMS.get(request.version.platform)
    if platform is None:
        raise Invalid(
            f"version.platform: {request.version.platform} isn't one; use PLATFORM_ONNX or PLATFORM_PLAN",
            reason="BAD_PLATFORM",
            metadata={"field": "version.platform"},
        )
    if request.request_id and not _UUID.fullmatch(request.request_id):
        raise Invalid(
            f"request_id: {shown(request.request_id)} is not a UUID",
            reason="BAD_REQUEST_ID",
            metadata={"field": "request_id"},
        )
    return Version(
        key(request.parent, "parent"),
        check_version(request.version_id, "version_id"),
        platform,
        BlobRef.from_proto(request.version.blob),
        now,
        request.request_id,
    )


def version(value: Version, condition: Condition) -> pb.ModelVersion:
    """Return a version as a message."""
    return pb.ModelVersion(
        name=str(value),
        platform=_PLATFORM_NUMBERS[value.platform],
        blob=value.blob.to_proto(),
        state=_STATES[condition.state],
        message=condition.message,
        create_time=_timestamp(value.create_time),
    )


def models_after(token: str) -> str:
    """Return the id behind which a page starts."""
    after = decode_token(token).get("after", "")
    return after if isinstance(after, str) else ""


def models_page(found: Sequence[Model], size: int) -> pb.ListModelsResponse:
    """Return a page of models; `found` has one more where there are more."""
    page = found[:size]
    token = encode_token({"after": page[-1].key.model}) if len(found) > size else ""
    return pb.ListModelsResponse(models=[model(each) for each in page], next_page_token=token)


def versions_before(token: str) -> int:
    """Return the sequence below which a page starts; 0 for the first."""
    before = decode_token(token).get("before", 0)
    return before if isinstance(before, int) and before > 0 else 0


def versions_page(found: Sequence[tuple[Version, Condition]], size: int) -> pb.ListModelVersionsResponse:
    """Return a page of versions; `found` has one more where there are more."""
    page = found[:size]
    token = encode_token({"before": page[-1][0].sequence}) if len(found) > size else ""
    return pb.ListModelVersionsResponse(versions=[version(*each) for each in page], next_page_token=token)
