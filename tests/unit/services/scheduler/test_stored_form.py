"""What etcd holds: CRD-shaped JSON that people can read and newer replicas may extend."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler.domain.objects import PastRequest
from services.scheduler.store import AliveKey, Key, LeaderKey, RequestKey
from services.scheduler.stores.etcd import decode, encode, parse_key, spell
from services.scheduler.testing import BEGIN, hold, make_job, make_node, make_queue

KEYS: list[Key] = [
    NodeName("n0"),
    QueueName("acme", "default"),
    JobName("acme", "j0"),
    ReservationName("acme", "r0"),
    RequestKey("acme", "ab" * 32),
    AliveKey(NodeName("n0")),
    LeaderKey(),
]


def test_objects_are_crd_shaped() -> None:
    body = json.loads(encode(make_job(workers=2)))
    assert (body["apiVersion"], body["kind"]) == ("scheduler.isthmus/v1", "Job")
    assert body["metadata"]["name"] == "tenants/acme/jobs/j0"
    assert body["spec"]["workerCount"] == 2
    assert body["spec"]["resources"] == {"cpuMillis": "1000", "memoryBytes": str(2**30)}
    assert body["status"]["state"] == "STATE_PENDING"
    assert "etag" not in body["metadata"]


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_resource_names(key: Key) -> None:
    assert spell(key).startswith("/isthmus/")
    assert parse_key(spell(key)) == key


@pytest.mark.parametrize(
    "text",
    ["/isthmus/", "/isthmus/nodes/A", "/isthmus/tenants/a/jobs/", "/isthmus/x/y", "/isthmus/nodes/a/b"],
)
def test_foreign_keys_are_nobody_s(text: str) -> None:
    assert parse_key(text) is None


def test_each_kind_comes_back_with_its_revision() -> None:
    job, reservation, (node,) = hold(make_job(), (make_node(), ()))
    for value in (node, job, reservation, make_queue()):
        back = decode(value.name, encode(value), 7)
        assert not isinstance(back, PastRequest)
        assert back.meta.revision == 7  # type: ignore[union-attr]
    past = PastRequest("acme", "ab" * 32, "f", "tenants/acme/jobs/j0", BEGIN)
    assert decode(RequestKey("acme", past.digest), encode(past), 0) == past


def test_fields_of_a_newer_replica_are_passed_over() -> None:
    body = json.loads(encode(make_queue()))
    body["spec"]["newField"] = 1
    assert decode(QueueName("acme", "default"), json.dumps(body).encode(), 0) == make_queue()


def test_a_value_under_another_name_is_refused() -> None:
    with pytest.raises(Invalid, match="is of"):
        decode(QueueName("acme", "other"), encode(make_queue()), 1)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KEYS[:5]), st.binary(max_size=200))
def test_bytes_that_are_nothing_are_refused(key: Key, data: bytes) -> None:
    with pytest.raises(Invalid):
        decode(key, data, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([make_queue(), make_job(), make_node(), hold(make_job(), (make_node(), ()))[1]]),
    st.data(),
)
def test_a_mangled_object_is_read_or_refused(value: object, data: st.DataObject) -> None:
    body = json.loads(encode(value))  # type: ignore[arg-type]
    part = data.draw(st.sampled_from(["metadata", "spec", "status"]))
    field = data.draw(st.sampled_from(sorted(body.get(part) or {"x": 1})))
    body.setdefault(part, {})[field] = data.draw(JSON)
    with suppress(Invalid):
        back = decode(value.name, json.dumps(body).encode(), 1)  # type: ignore[attr-defined]
        assert type(back) is type(value)
