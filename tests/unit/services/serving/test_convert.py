"""What is written is read back as the same."""

from datetime import UTC, datetime

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from isthmus.serving.v1 import model_pb2 as pb
from libs.common.blobs import BlobRef
from libs.common.errors import Invalid
from services.serving import convert
from services.serving.domain.model import (
    Condition,
    Model,
    ModelKey,
    Platform,
    ServingConfig,
    State,
    Version,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
KEY = ModelKey("acme", "m")
CONFIGS = st.builds(
    ServingConfig,
    max_batch_rows=st.integers(1, 4096),
    max_batch_delay_s=st.integers(0, 10**10).map(lambda nanos: nanos / 1e9),
    instance_count=st.integers(1, 64),
    intra_op_thread_count=st.integers(1, 64),
    queue_capacity=st.integers(1, 65536),
    queue_timeout_s=st.integers(10**6, 3600 * 10**9).map(lambda nanos: nanos / 1e9),
    kept_version_count=st.integers(1, 16),
)


@given(CONFIGS)
def test_a_configuration_comes_back(config: ServingConfig) -> None:
    assert convert.config(convert.to_config(config)) == config


def test_what_isnt_said_takes_the_default() -> None:
    assert convert.config(pb.ServingConfig()) == ServingConfig()


@given(st.binary(max_size=64))
def test_whatever_configuration_comes_is_taken_or_refused_as_invalid(data: bytes) -> None:
    message = pb.ServingConfig()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return
    try:
        found = convert.config(message)
    except Invalid:
        return
    assert convert.config(convert.to_config(found)) == found


@pytest.mark.parametrize("platform", list(Platform))
@pytest.mark.parametrize("state", list(State))
def test_a_version_is_told_as_it_is(platform: Platform, state: State) -> None:
    value = Version(KEY, "v1", platform, BlobRef.of(b"v1"), NOW)
    message = convert.version(value, Condition(state, "why"))
    assert convert.version_key(message.name) == (KEY, "v1")
    assert pb.ModelVersion.State.Name(message.state) == f"STATE_{state.name}"
    assert (message.message, message.create_time.ToDatetime(UTC)) == ("why", NOW)
    request = pb.CreateModelVersionRequest(parent=str(KEY), version_id="v1", version=message)
    assert convert.draft(request, NOW) == value


def test_pages_go_on_where_they_ended() -> None:
    models = [Model(ModelKey("acme", name), ServingConfig(), NOW) for name in "abc"]
    page = convert.models_page(models, 2)
    assert ([each.name[-1] for each in page.models], convert.models_after(page.next_page_token)) == (
        ["a", "b"],
        "b",
    )
    assert not convert.models_page(models, 3).next_page_token
