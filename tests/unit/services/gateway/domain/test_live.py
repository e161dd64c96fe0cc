from libs.common.errors import Unavailable
from libs.common.identity import Identity
from services.gateway.domain.callers import Caller
from services.gateway.domain.live import LiveStreams


def caller(principal):
    return Caller(Identity("acme", principal, "user", frozenset(), "gateway"), valid_until=0.0)


def test_cutting_reaches_all_streams_of_one_principal_once():
    live, one, other = LiveStreams(), [], []
    error = Unavailable("bye")
    with (
        live.open(caller("a"), one.append) as first,
        live.open(caller("a"), one.append),
        live.open(caller("b"), other.append),
    ):
        live.cut("a", error)
        live.cut("a", Unavailable("again"))
        assert (one, other, first.error) == ([error, error], [], error)
        assert len(live) == 3  # until each has ended by itself
    assert len(live) == 0


def test_cutting_whoever_is_not_there_does_nothing():
    LiveStreams().cut("nobody", Unavailable("bye"))
