"""`isthmus task publish`: events go up with the version, and its pre-flight is shown."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import preflight_pb2
from libs.cli.testing import FakeCloud
from libs.trust.keys import SigningKey
from tests.unit.libs.cli.groups.conftest import Isthmus, Ran

States = preflight_pb2.Preflight
EVENTS = b'{"type": "click", "user": "ann", "time_s": 1700000000}\n'

Publish = Callable[..., Ran]


@pytest.fixture
def publish(isthmus: Isthmus, tmp_path: Path) -> Publish:
    """Publishes a small task."""
    folder, keys = tmp_path / "shop", tmp_path / "keys"
    keys.mkdir()
    SigningKey.load_or_create(keys / "author.key")
    isthmus("task", "init", "shop", "--folder", str(folder))
    return lambda *flags: isthmus("task", "publish", str(folder), "--keys", str(keys), *flags)


@pytest.fixture
def events(tmp_path: Path) -> str:
    file = tmp_path / "events.jsonl"
    file.write_bytes(EVENTS)
    return str(file)


def passed(cloud: FakeCloud) -> preflight_pb2.Preflight:
    return preflight_pb2.Preflight(
        state=States.STATE_PASSED,
        events=cloud.put(EVENTS),
        event_count=20_000,
        run_count=1_234,
        frame_count=12,
        frame_bytes=3_000,
        refused_frame_count=4,
        asked_count=5,
        p50_run_time=Duration(nanos=1_500_000),
        p99_run_time=Duration(nanos=20_000_000),
    )


def test_events_go_up_and_the_verdict_is_shown(cloud: FakeCloud, publish: Publish, events: str) -> None:
    cloud.tasks.preflight = passed(cloud)
    cloud.blobs.clear()
    ran = publish("--events", events)
    assert ran.code == 0, ran.err
    (request,) = cloud.tasks.published
    assert request.events.digest == f"sha256:{hashlib.sha256(EVENTS).hexdigest()}"
    assert cloud.blobs[request.events.digest] == EVENTS
    assert cloud.tasks.waited_s > 200
    assert "simulating shop@1.0.0 …" in ran.err
    (line,) = [line for line in ran.lines if line.startswith("pre-flight")]
    assert line == (
        "pre-flight passed: 1,234 runs over 20,000 events; p50 1.5 ms, p99 20.0 ms; "
        "12 frames (2.9 KiB) would be sent; 4 refused; asked models 5 times"
    )


def test_json_has_the_figures_and_no_progress(cloud: FakeCloud, publish: Publish, isthmus: Isthmus) -> None:
    cloud.tasks.preflight = passed(cloud)
    ran = publish("--json")
    assert not cloud.tasks.published[0].HasField("events")
    assert (ran.err, ran.json["preflight"]["state"]) == ("", "STATE_PASSED")
    assert ran.json["preflight"]["run_count"] == 1_234
    assert isthmus("task", "get", "shop", "--json").json["preflight"] == ran.json["preflight"]


def test_a_version_that_is_there_is_not_simulated_again(publish: Publish) -> None:
    assert "simulating" in publish("--dry-run").err
    assert "simulating" in publish().err
    again = publish()
    assert (again.code, "simulating" in again.err) == (0, False)
    assert "nothing changed" in again.out


def test_versions_and_get_show_each_verdict(cloud: FakeCloud, publish: Publish, isthmus: Isthmus) -> None:
    cloud.tasks.preflight = preflight_pb2.Preflight(state=States.STATE_SKIPPED)
    publish()
    for version, preflight, word, text in (
        ("1", None, "-", "pre-flight -"),
        ("2", preflight_pb2.Preflight(state=States.STATE_PASSED), "passed", "pre-flight passed: it loads;"),
        ("3", preflight_pb2.Preflight(state=77), "unknown", "pre-flight unknown:"),
        (
            "4",
            preflight_pb2.Preflight(state=States.STATE_FAILED, reason="CRASH", message="line 2"),
            "failed",
            "pre-flight failed with CRASH: line 2",
        ),
        ("5", cloud.tasks.preflight, "skipped", "pre-flight skipped: this cloud has no simulator"),
    ):
        found = next(iter(cloud.tasks.versions.values()))
        new = type(found)()
        new.CopyFrom(found)
        new.name = f"tenants/acme/tasks/shop/versions/{version}"
        new.ClearField("preflight")
        if preflight is not None:
            new.preflight.CopyFrom(preflight)
        cloud.tasks.versions[new.name] = new
        header, newest, *_ = isthmus("task", "versions", "shop").lines
        assert header == "VERSION SIZE PRE-FLIGHT PUBLISHED BY"
        assert newest.startswith(f"{version} 0 bytes {word} ") or f" {word} " in newest
        got = isthmus("task", "get", f"shop@{version}")
        assert any(line.startswith(text) for line in got.lines), got.lines


@pytest.mark.parametrize("what", ["missing", "folder", "too large"])
def test_events_that_cannot_go_up_are_refused_before_anything_does(
    cloud: FakeCloud, publish: Publish, tmp_path: Path, what: str
) -> None:
    file = tmp_path / "recording"
    if what == "folder":
        file.mkdir()
    elif what == "too large":
        with file.open("wb") as written:
            written.truncate((16 << 20) + 1)
    ran = publish("--events", str(file))
    assert ran.code in (2, 4)
    assert str(file) in ran.err
    assert (cloud.blobs, cloud.tasks.published) == ({}, [])


def test_a_failed_preflight_says_what_failed(cloud: FakeCloud, publish: Publish, events: str) -> None:
    cloud.tasks.refusal = "shop@1.0.0 failed its pre-flight with EXCEPTION: line 7"
    ran = publish("--events", events)
    assert ran.code == 1
    assert "failed its pre-flight with EXCEPTION: line 7" in ran.err


@pytest.mark.parametrize("text", ["Socket closed", "the service 'deployer' can't be reached"])
def test_an_answer_that_is_lost_leaves_no_doubt_what_to_do(
    cloud: FakeCloud, publish: Publish, text: str
) -> None:
    cloud.tasks.refusal, cloud.tasks.refused_with = text, grpc.StatusCode.UNAVAILABLE
    lost = publish()
    assert lost.code == 5
    assert "whether shop@1.0.0 was published isn't known; run it again, publishing twice is safe" in lost.err
    assert "--dry-run published nothing; run it again" in publish("--dry-run").err
    cloud.tasks.refusal = ""
    assert publish().code == 0
    cloud.tasks.refusal, cloud.tasks.refused_with = "no", grpc.StatusCode.FAILED_PRECONDITION
    assert "isn't known" not in publish().err


ASKS = {"ranker": {"x": "FP32"}}


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        (ASKS, ""),
        ({"rankr": {"x": "FP32"}}, "the scripts ask the model 'rankr', which isn't served"),
        ({"ranker": {"x": "INT64"}}, "its input 'x' is FP32, and the task declares INT64"),
        ({"ranker": {"x": "FP32", "z": "FP32"}}, "it has no input 'z', but 'x'"),
        ({"ranker": {"z": "FP32"}}, "it needs 'x' as well, which the task doesn't declare"),
    ],
)
def test_models_that_would_not_answer_are_warned_of(
    cloud: FakeCloud, isthmus: Isthmus, publish: Publish, tmp_path: Path, asks: object, said: str
) -> None:
    isthmus("endpoint", "put", "ranker")
    source = tmp_path / "shop" / "task.json"
    source.write_text(json.dumps(json.loads(source.read_text()) | {"endpoints": asks}))
    ran = publish()
    assert (ran.code, len(cloud.tasks.published)) == (0, 1)
    assert (said in ran.err) if said else "the scripts ask" not in ran.err, ran.err
    told = [json.loads(line) for line in publish("--json").err.splitlines()]
    assert ([said in each["warning"] for each in told] == [True]) if said else told == []


def test_models_are_not_warned_of_where_serving_can_not_say(
    cloud: FakeCloud, isthmus: Isthmus, publish: Publish, tmp_path: Path
) -> None:
    isthmus("endpoint", "put", "ranker")
    source = tmp_path / "shop" / "task.json"
    asks = {"ranker": {"z": "FP32"}}
    source.write_text(json.dumps(json.loads(source.read_text()) | {"endpoints": asks}))
    cloud.serving.restarts = 2
    ran = publish()
    assert (ran.code, "the scripts ask" in ran.err) == (0, False)
    assert cloud.serving.restarts == 1
