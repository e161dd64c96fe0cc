"""How the demo's devices are fed and waited for; no agent runs here."""

from pathlib import Path

import pytest

from examples.demo.data import Log
from examples.demo.devices import Device
from examples.demo.fleet import Fleet, dealt
from examples.demo.plan import Plan
from examples.demo.progress import Progress, Step
from libs.common.errors import Error, Invalid, Unavailable
from libs.task.event import Event


def events(count: int) -> list[Event]:
    return [Event(str(number), "view", "", "u", float(number)) for number in range(count)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(Plan(deadline_s=0.5), "127.0.0.1:1", tmp_path, Progress(()))
    (tmp_path / "agent.log").write_text("its last words\n", "utf-8")
    made.devices = [Device(f"d{number}", tmp_path, "127.0.0.1:1", "", {}, events(100)) for number in range(2)]
    return made


def test_what_is_waited_for_is_named_when_it_never_comes(fleet: Fleet) -> None:
    with pytest.raises(Unavailable, match=r"gave up after 0\.5 s while waiting for rain"):
        fleet.wait("rain", lambda: False)


def test_a_broken_device_is_told_with_its_log(fleet: Fleet) -> None:
    fleet.devices[1].fault = "d1: INTERNAL: oh"
    with pytest.raises(Error, match=r"(?s)d1 broke while waiting for rain: d1: INTERNAL: oh\nits last words"):
        fleet.wait("rain", lambda: False)


def test_what_goes_on_meanwhile_returns_or_raises(fleet: Fleet) -> None:
    assert fleet.meanwhile("work", lambda: 7) == 7

    def fail() -> None:
        raise Invalid("no")

    with pytest.raises(Invalid, match="no"):
        fleet.meanwhile("work", fail)


def test_a_replay_ends_with_what_may_be_sent(fleet: Fleet) -> None:
    fleet.allow([40, 60])
    for device, sent in zip(fleet.devices, (40, 50), strict=True):
        device.sent = sent
    step = Step("replay")
    fleet.replay([90, 50], "histories", step)
    # Nothing was left to do.
    assert step.share == 0.0
    with pytest.raises(Unavailable, match="waiting for histories"):
        fleet.replay([90, 60], "histories", step)


def test_a_log_that_is_too_short_is_refused() -> None:
    log = Log("short", {f"u{number}": events(50) for number in range(8)})
    with pytest.raises(Invalid, match="one of 8 devices gets 50 events and needs 120"):
        dealt(log, Plan())
    assert [len(hand) for hand in dealt(Log("long", {str(n): events(150) for n in range(8)}), Plan())] == [
        150
    ] * 8
