import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from libs.common import errors
from libs.common.errors import Error
from libs.common.status import (
    CODES,
    DETAILS_TRAILER,
    code_of,
    details_of,
    error_from_rpc,
    is_made_up,
    message_of,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, Error) and kind is not Error
]


def arrived(code: grpc.StatusCode, text: str, *trailers: tuple[str, bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=text)


def test_every_error_has_a_code_of_its_own() -> None:
    assert set(CODES) == set(KINDS)
    assert len(set(CODES.values())) == len(KINDS)


def test_a_subclass_has_the_code_of_its_base() -> None:
    class Stale(errors.Conflict):
        pass

    assert code_of(Stale("x")) is grpc.StatusCode.ABORTED
    assert code_of(Error("x")) is grpc.StatusCode.INTERNAL


def test_other_clients_find_the_standard_details() -> None:
    error = errors.Exhausted("full", reason="DISK_FULL", metadata={"disk": "a"}, retry_after_s=0.25)
    status = status_pb2.Status.FromString(details_of(error, "tunnel.isthmus"))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (status.code, status.message) == (8, "full")
    assert (info.reason, info.domain, dict(info.metadata)) == ("DISK_FULL", "tunnel.isthmus", {"disk": "a"})
    assert retry.retry_delay.ToTimedelta().total_seconds() == 0.25


@given(
    st.sampled_from(KINDS),
    st.text(max_size=300),
    st.dictionaries(st.text(max_size=20), st.text(max_size=30), max_size=5),
    st.none() | st.integers(0, 10_000_000).map(lambda n: n / 1000),
)
def test_an_error_survives_the_way(
    kind: type[Error], text: str, metadata: dict[str, str], retry_after_s: float | None
) -> None:
    error = kind(text, reason="SOME_REASON", metadata=metadata, retry_after_s=retry_after_s)
    back = error_from_rpc(
        arrived(code_of(error), message_of(error), (DETAILS_TRAILER, details_of(error, "d")))
    )
    assert type(back) is kind
    assert back.reason == "SOME_REASON"
    assert back.metadata == metadata
    assert back.message == (text or code_of(error).name)
    assert back.retry_after_s == (pytest.approx(retry_after_s) if retry_after_s is not None else None)


@given(st.sampled_from(list(grpc.StatusCode)), st.text(max_size=20), st.binary(max_size=60))
def test_a_peer_without_our_details_still_gives_an_error(
    code: grpc.StatusCode, text: str, junk: bytes
) -> None:
    error = error_from_rpc(arrived(code, text, (DETAILS_TRAILER, junk)))
    assert error.message
    assert error.reason


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.Unavailable, "DEADLINE_EXCEEDED"),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Precondition, "UNIMPLEMENTED"),
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable, "UNAVAILABLE"),
        (grpc.StatusCode.UNKNOWN, errors.Internal, "UNKNOWN"),
    ],
)
def test_codes_that_no_domain_raises_have_a_place(
    code: grpc.StatusCode, kind: type[Error], reason: str
) -> None:
    error = error_from_rpc(arrived(code, ""))
    assert (type(error), error.reason, error.message) == (kind, reason, code.name)


@given(st.text(max_size=20_000), st.dictionaries(st.text(max_size=500), st.text(max_size=5_000), max_size=30))
def test_a_status_always_fits_a_header(text: str, metadata: dict[str, str]) -> None:
    error = errors.Invalid(text, metadata=metadata)
    assert len(message_of(error).encode()) <= 2003
    assert len(details_of(error, "d")) * 4 / 3 + 2003 < 8000


def test_a_status_that_came_without_trailers_is_made_up() -> None:
    assert is_made_up(arrived(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    details = details_of(errors.Internal("x"), "tunnel.isthmus")
    assert not is_made_up(arrived(grpc.StatusCode.INTERNAL, "x", (DETAILS_TRAILER, details)))


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        (
            "SERVER: Received message larger than max (104857630 vs. 33554432)",
            "MESSAGE_TOO_LARGE",
            "the request has 100 MiB (104,857,630 bytes), and 32 MiB (33,554,432 bytes) are allowed",
        ),
        (
            "CLIENT: Sent message larger than max (9 vs. 4)",
            "MESSAGE_TOO_LARGE",
            "the request has 9 bytes, and 4",
        ),
        (
            "CLIENT: Received message larger than max (9 vs. 4)",
            "ANSWER_TOO_LARGE",
            "the answer has 9 bytes, and",
        ),
        (
            "SERVER: Sent message larger than max (9 vs. 4)",
            "ANSWER_TOO_LARGE",
            "the answer has 9 bytes, and 4",
        ),
        ("grpc: received message larger than max (9 vs. 4)", "MESSAGE_TOO_LARGE", "the request has 9 bytes"),
    ],
)
def test_grpc_own_words_for_a_size_become_ours(text: str, reason: str, said: str) -> None:
    error = error_from_rpc(arrived(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
    assert isinstance(error, errors.Invalid)
    assert error.reason == reason
    assert error.message.startswith(said)
    assert not error.retriable


def test_what_a_service_says_of_sizes_itself_is_left_as_it_is() -> None:
    text = "Received message larger than max (9 vs. 4)"
    raised = errors.Exhausted(text, reason="TOO_MANY_BYTES")
    back = error_from_rpc(
        arrived(grpc.StatusCode.RESOURCE_EXHAUSTED, text, (DETAILS_TRAILER, details_of(raised, "x")))
    )
    assert (type(back), back.reason, back.message) == (errors.Exhausted, "TOO_MANY_BYTES", text)
    other = error_from_rpc(arrived(grpc.StatusCode.UNKNOWN, text))
    assert (type(other), other.message) == (errors.Internal, text)
