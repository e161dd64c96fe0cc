"""What nobody can read in the store is unknown, not gone: nothing is given up because of it."""

from dataclasses import replace

import pytest

from libs.common.names import JobName, NodeName
from libs.common.testing import FakeRandomness
from services.scheduler.domain import lifecycle
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.testing import BEGIN, hold, make_job, make_node, make_queue, snapshot_of

NAME, NODE = JobName("acme", "j"), NodeName("n0")


def running() -> Snapshot:
    """A job that runs on one node."""
    job, reservation, (node,) = hold(make_job("j"), (make_node(), ()))
    return snapshot_of(nodes=[node], queues=[make_queue()], jobs=[job], reservations=[reservation])


def without(snapshot: Snapshot, what: str, *, unreadable: bool) -> Snapshot:
    """Return the snapshot of a process that never could read `what`, or where it was removed."""
    keys = frozenset(getattr(snapshot, what)) if unreadable else frozenset()
    return replace(snapshot, unreadable=keys, **{what: {}})  # type: ignore[arg-type]


def given_up(snapshot: Snapshot) -> bool:
    job = snapshot.jobs[NAME]
    return lifecycle.advance(job, snapshot, BEGIN, FakeRandomness()) is not None


@pytest.mark.parametrize("what", ["nodes", "reservations"])
def test_a_job_goes_on_where_a_value_is_unreadable_and_not_where_it_is_gone(what: str) -> None:
    assert not given_up(running())
    assert not given_up(without(running(), what, unreadable=True))
    assert given_up(without(running(), what, unreadable=False))


@pytest.mark.parametrize("what", ["jobs", "reservations"])
def test_what_an_unreadable_value_may_hold_is_not_given_back(what: str) -> None:
    assert lifecycle.orphans(running()) == []
    assert lifecycle.orphans(without(running(), what, unreadable=True)) == []
    (change,) = lifecycle.orphans(without(running(), what, unreadable=False))
    assert [value.name for value in change.puts] == [NODE]  # type: ignore[union-attr]
