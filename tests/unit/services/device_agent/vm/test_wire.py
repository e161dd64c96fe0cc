"""Requests that a worker gets; replies, which are untrusted."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.event import Event
from services.device_agent.vm.model import Execution, Outcome, Reason, Sent, VmConfig
from services.device_agent.vm.testing import build_task
from services.device_agent.vm.wire import (
    ProtocolFault,
    load_request,
    outcome_from,
    parse_reply,
    run_request,
    unload_request,
)

CONFIG = VmConfig(scratch_dir=Path("/nowhere"), max_request_bytes=1000)
TASK = build_task("def post(c): return {}")


def test_a_run_carries_events_and_features() -> None:
    event = Event("e1", "rate", "item", "u", 1.5, {"rating": 4})
    body = run_request(TASK, Execution("probe", "1", [event], {"f": [1]}), CONFIG)
    request = json.loads(body)
    assert request["op"] == "run"
    assert request["key"] == "probe@1"
    assert request["events"] == [event.to_json()]
    assert request["features"] == {"f": [1]}
    assert body.startswith(b"{")  # the call's id is put in after it


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"x", object()])
def test_features_that_are_no_json_are_refused(value: object) -> None:
    with pytest.raises(Invalid, match="run of probe@1 are no JSON"):
        run_request(TASK, Execution("probe", "1", features={"f": value}), CONFIG)


def test_too_large_is_refused() -> None:
    with pytest.raises(Invalid, match="more than 1000") as caught:
        run_request(TASK, Execution("probe", "1", features={"f": "x" * 1000}), CONFIG)
    assert caught.value.reason == "TOO_LARGE"
    with pytest.raises(Invalid, match="scripts of probe@1"):
        load_request(build_task("#" * 1000), CONFIG)


def test_the_other_requests() -> None:
    request = json.loads(load_request(TASK, CONFIG))
    assert [script["path"] for script in request["scripts"]] == ["post.py"]
    assert request["scripts"][0]["digest"] == TASK.scripts[0].digest
    assert json.loads(unload_request("probe@1")) == {"op": "unload", "key": "probe@1"}


def test_a_good_reply_becomes_an_outcome() -> None:
    reply = {"ok": True, "value": {"a": 1}, "sends": [["s", {"b": 2}]], "logs": ["x"], "cpu_s": 0.5}
    assert outcome_from(reply) == Outcome({"a": 1}, sends=(Sent("s", {"b": 2}),), logs=("x",), cpu_s=0.5)


def test_a_failure_becomes_an_outcome() -> None:
    reply = {"ok": False, "reason": "MEMORY", "message": "too much", "peak_rss_bytes": 7}
    assert outcome_from(reply) == Outcome(None, Reason.MEMORY, "too much", peak_rss_bytes=7)


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"ok": True, "value": [1]},
        {"ok": True, "sends": 3},
        {"ok": True, "sends": [["s"]]},
        {"ok": True, "sends": [["s", 1]]},
        {"ok": True, "sends": [[1, {}]]},
        {"ok": True, "logs": [1]},
        {"ok": True, "logs": 1},
        {"ok": True, "cpu_s": "x"},
        {"ok": True, "cpu_s": []},
        {"ok": True, "peak_rss_bytes": float("inf")},
        {"ok": False},
        {"ok": False, "reason": "MEMORY"},
        {"ok": False, "reason": "NO_SUCH", "message": ""},
        {"ok": False, "reason": "TIMEOUT", "message": "only the agent can say so"},
        {"ok": 1, "reason": [], "message": ""},
    ],
)
def test_a_malformed_reply_is_a_fault(reply: dict[str, Any]) -> None:
    with pytest.raises(ProtocolFault):
        outcome_from(reply)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["ok", "value", "sends", "logs", "cpu_s", "peak_rss_bytes", "reason", "message"])


@given(st.dictionaries(names, json_values))
def test_no_reply_does_more_than_that(reply: dict[str, Any]) -> None:
    try:
        outcome = outcome_from(reply)
    except ProtocolFault:
        return
    assert outcome.ok == (outcome.value is not None)


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_a_reply_is_an_object_of_json() -> None:
    assert parse_reply(b'{"id": 1, "value": {"a": [1.5, "\\u00fc"]}}') == {
        "id": 1,
        "value": {"a": [1.5, "\u00fc"]},
    }
    assert parse_reply(nested(64))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": [-1e999]}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        nested(65),
        nested(100_000),
    ],
)
def test_what_could_not_be_written_again_is_no_reply(body: bytes) -> None:
    # Whoever stores a result writes it as JSON: what can't be written must not get that far.
    with pytest.raises(ProtocolFault):
        parse_reply(body)
