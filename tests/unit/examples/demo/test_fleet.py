"""How the demo's devices are fed and waited for; no agent runs here."""

import threading
from pathlib import Path

import pytest

from examples.demo.data import Log
from examples.demo.devices import Device
from examples.demo.fleet import Fleet, dealt
from examples.demo.plan import Plan
from examples.demo.progress import Progress, Step
from isthmus.device_agent.v1 import device_agent_pb2 as pb
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


@pytest.mark.parametrize(
    ("state", "sent", "waiting", "may_decide"),
    [
        ("", 100, 0, True),  # nobody runs it
        ("FAILED", 100, 0, True),
        ("CONFIRMED", 100, 0, True),
        ("ACTIVE", 99, 0, True),
        ("ACTIVE", 100, 1, True),
        ("ACTIVE", 100, 0, False),
    ],
)
def test_devices_without_events_are_not_waited_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, state: str, sent: int, waiting: int, may_decide: bool
) -> None:
    fleet.allow([40, 40])
    runs = pb.GetStatusResponse(
        tasks=[pb.TaskStatus(task="t", version="2", state=state)], pending_run_count=waiting
    )
    # The other one is away.
    answers = dict(zip((device.device_id for device in fleet.devices), (runs, None), strict=True))
    monkeypatch.setattr(Device, "quick_status", lambda device: answers[device.device_id])
    fleet.devices[0].sent = sent
    assert fleet.give_the_rest("t@2") is may_decide
    assert fleet.devices[0].allowed == (100 if state in ("ACTIVE", "CONFIRMED") else 40)
    assert fleet.devices[1].allowed == 40


@pytest.mark.parametrize(("devices", "steps"), [(4, (60, 90)), (7, (60, 90)), (8, (40, 75)), (20, (40, 75))])
def test_a_step_before_the_last_holds_a_device(devices: int, steps: tuple[int, int]) -> None:
    plan = Plan(devices=devices)
    assert plan.steps == f"{steps[0]}%,{steps[1]}%,100%"
    assert (1 - steps[1] / 100) ** devices < 1.1e-4


def test_a_log_that_is_too_short_is_refused() -> None:
    log = Log("short", {f"u{number}": events(50) for number in range(8)})
    with pytest.raises(Invalid, match="one of 8 devices gets 50 events and needs 120"):
        dealt(log, Plan())
    assert [len(hand) for hand in dealt(Log("long", {str(n): events(150) for n in range(8)}), Plan())] == [
        150
    ] * 8


def test_a_device_whose_threads_an_interrupt_kept_from_starting_stops(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fleet.devices[0].feed(lambda: 1.0)
    fleet.stop()
