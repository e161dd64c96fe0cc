"""What a failed call to serving means to a device."""

import grpc
import pytest

from libs.common import errors
from libs.common.errors import Error
from libs.common.status import DETAILS_TRAILER, code_of, details_of
from services.gateway.tunnel.models import _failure

Code = grpc.StatusCode


def made_up(code: grpc.StatusCode, text: str = "10.0.0.7:7450 went away") -> grpc.aio.AioRpcError:
    """Return a status that gRPC itself made on this side."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


def said(error: Error) -> grpc.aio.AioRpcError:
    """Return a status that serving answered."""
    trailers = grpc.aio.Metadata((DETAILS_TRAILER, details_of(error, "serving.isthmus")))
    return grpc.aio.AioRpcError(code_of(error), grpc.aio.Metadata(), trailers, error.message)


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL])
def test_a_serving_that_is_away_is_told_without_its_address(code: grpc.StatusCode) -> None:
    failure = _failure(made_up(code))
    assert isinstance(failure, errors.Unavailable)
    assert failure.reason == "SERVING_UNREACHABLE"
    assert "10.0.0.7" not in failure.message


def test_time_that_is_over_by_either_clock() -> None:
    assert isinstance(_failure(made_up(Code.DEADLINE_EXCEEDED)), TimeoutError)
    late = errors.Unavailable("came after its deadline", reason="DEADLINE_EXCEEDED")
    assert isinstance(_failure(said(late)), TimeoutError)


def test_an_answer_that_grpc_refuses_for_its_size() -> None:
    failure = _failure(made_up(Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 4)"))
    assert isinstance(failure, errors.Invalid)
    assert failure.reason == "ANSWER_TOO_LARGE"
    assert "the answer has 9 bytes" in failure.message
    busy = _failure(made_up(Code.RESOURCE_EXHAUSTED, "Too many pending requests for this server"))
    assert isinstance(busy, errors.Exhausted)


@pytest.mark.parametrize("reason", ["BAD_IDENTITY", "IDENTITY_EXPIRED", "WRONG_CALLER", "NO_CREDENTIAL"])
def test_a_serving_that_does_not_believe_the_tunnel(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    failure = _failure(said(errors.Unauthenticated("the token doesn't verify", reason=reason)))
    assert isinstance(failure, errors.Unavailable)
    assert failure.reason == "SERVING_MISTRUST"
    assert "the token doesn't verify" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        errors.NotFound("no model 'm'", reason="MODEL_NOT_FOUND"),
        errors.Exhausted("requests hold too many bytes", reason="TOO_MANY_BYTES"),
        errors.Unavailable("as many wait as may", reason="QUEUE_FULL"),
        errors.Internal("it has been logged"),
    ],
)
def test_what_serving_says_passes_through(error: Error) -> None:
    failure = _failure(said(error))
    assert type(failure) is type(error)
    assert isinstance(failure, Error)
    assert (failure.reason, failure.message) == (error.reason, error.message)
