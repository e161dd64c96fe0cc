"""What etcd would refuse is refused before it is sent; prefixes are exact; events aren't split."""

import pickle

import pytest
from etcd_stubs import kv_pb2
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid, OutOfRange
from libs.common.etcd import MAX_REQUEST_BYTES, Compacted, Compare, Delete, Event, Get, KeyValue, Put, wire
from libs.common.etcd.types import Op, Range
from libs.common.etcd.watch import _whole_revisions

keys = st.binary(min_size=1, max_size=6).map(wire.key_text)


@given(st.binary(min_size=1, max_size=64))
def test_every_key_survives_the_way_into_text_and_back(key: bytes) -> None:
    assert wire.key_bytes(wire.key_text(key)) == key


@given(keys, st.binary(min_size=1, max_size=8))
def test_a_prefix_covers_what_begins_with_it_and_nothing_else(prefix: str, key: bytes) -> None:
    first, end = wire.prefix_range(prefix)
    covered = key >= first and (end == b"\0" or key < end)
    assert covered == key.startswith(wire.key_bytes(prefix))


def test_the_empty_prefix_covers_everything() -> None:
    assert wire.prefix_range("") == (b"\0", b"\0")


@pytest.mark.parametrize(
    ("key", "said"),
    [("", "empty"), ("x" * 4097, "4097 bytes"), ("é" * 2049, "4098 bytes"), ("\ud800", "UTF-8")],
)
def test_a_key_that_cannot_be_is_refused(key: str, said: str) -> None:
    for op in (Put(key, b""), Delete(key), Get(key)):
        with pytest.raises(Invalid, match=said) as caught:
            wire.transaction((), (op,), ())
        assert caught.value.reason == "BAD_KEY"
    with pytest.raises(Invalid, match=said):
        wire.transaction((Compare.value(key, b""),), (), ())


@pytest.mark.parametrize("revision", [-1, 2**63])
def test_a_revision_that_cannot_be_is_refused(revision: int) -> None:
    for compare in (Compare.mod_revision, Compare.create_revision, Compare.version):
        with pytest.raises(Invalid, match="is not a revision"):
            wire.transaction((compare("/a", revision),), (), ())


@pytest.mark.parametrize("name", ["compare", "success", "failure"])
def test_a_list_of_more_than_128_is_refused(name: str) -> None:
    def build(count: int) -> object:
        names = [f"/{number}" for number in range(count)]
        ops: list[Op] = [Put(key, b"") for key in names]
        return wire.transaction(
            [Compare.mod_revision(key, 0) for key in names] if name == "compare" else (),
            ops if name == "success" else (),
            ops if name == "failure" else (),
        )

    build(128)
    with pytest.raises(Invalid, match=f"{name}: 129 entries") as caught:
        build(129)
    assert caught.value.reason == "TRANSACTION_TOO_LARGE"


def test_a_transaction_of_more_than_a_request_is_refused() -> None:
    wire.transaction((), [Put("/a", b"x" * (MAX_REQUEST_BYTES - 600))], ())
    half = b"x" * (MAX_REQUEST_BYTES // 2)
    with pytest.raises(Invalid, match="bytes large") as caught:
        wire.transaction((), [Put("/a", half), Put("/b", half)], ())
    assert caught.value.reason == "TRANSACTION_TOO_LARGE"


@pytest.mark.parametrize(
    "ops",
    [
        [Put("/a", b"1"), Put("/a", b"2")],
        [Put("/a", b"1"), Delete("/a")],
        [Delete("/", prefix=True), Put("/a", b"1")],
    ],
)
def test_a_key_that_is_written_twice_is_refused(ops: list[Op]) -> None:
    for success, failure in ((ops, []), ([], ops)):
        with pytest.raises(Invalid, match="written twice") as caught:
            wire.transaction((), success, failure)
        assert caught.value.reason == "DUPLICATE_KEY"


def test_reading_a_key_beside_writing_it_is_no_double_write() -> None:
    request = wire.transaction((), [Put("/a", b"1"), Get("/a"), Delete("/b"), Delete("/c/", prefix=True)], ())
    assert len(request.success) == 4


@given(st.text(max_size=8), st.binary(max_size=8), st.integers(1, 2**63 - 1), st.booleans())
def test_an_event_says_what_its_message_says(key: str, value: bytes, revision: int, before: bool) -> None:
    kv = KeyValue(wire.key_text(key.encode("utf-8", "replace")), value, revision, revision, 1, 7)
    message = kv_pb2.KeyValue(
        key=kv.key.encode(), value=value, create_revision=revision, mod_revision=revision, version=1, lease=7
    )
    put = kv_pb2.Event(kv=message, prev_kv=message if before else None)
    assert wire.event(put) == Event("put", kv, kv if before else None)


def change(revision: int) -> Event:
    return Event("put", KeyValue("/a", b"", revision, revision, 1, 0), None)


@given(st.lists(st.integers(1, 6), max_size=8), st.booleans())
def test_only_whole_revisions_are_passed_on(revisions: list[int], more: bool) -> None:
    events = [change(revision) for revision in sorted(revisions)]
    whole, rest = _whole_revisions(events, more)
    assert whole + rest == events
    assert {event.kv.mod_revision for event in rest} == ({max(revisions)} if more and revisions else set())
    assert not {event.kv.mod_revision for event in whole} & {event.kv.mod_revision for event in rest}


def test_the_next_page_starts_after_the_last_key() -> None:
    kv = KeyValue("/a", b"", 1, 1, 1, 0)
    assert Range((kv,), 1, more=True).next_start == "/a\0"
    assert Range((), 1, more=False).next_start == ""


def test_compacted_crosses_processes() -> None:
    back = pickle.loads(pickle.dumps(Compacted(42)))
    assert isinstance(back, OutOfRange)
    assert (back.revision, back.reason, back.metadata) == (42, "COMPACTED", {"revision": "42"})
    assert "42" in back.message
