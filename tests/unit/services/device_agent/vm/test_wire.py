"""Requests that a worker gets; replies, which are untrusted."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.event import Event
from libs.task.tensor import Tensor
from services.device_agent.vm.model import Ask, Execution, Outcome, Reason, Reply, Sent, VmConfig
from services.device_agent.vm.testing import build_task
from services.device_agent.vm.wire import (
    ProtocolFault,
    load_request,
    outcome_from,
    parse_ask,
    parse_reply,
    reply_to_ask,
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


GOOD_ASK = {"model": "ranker", "timeout_s": 1, "outputs": ["score"], "inputs": []}
TENSOR = {"name": "item", "datatype": "INT64", "shape": [1], "content": "AAAAAAAAAAA="}


def test_what_a_run_asks_is_read():
    ask = parse_ask({"id": 3, "ask": GOOD_ASK | {"inputs": [TENSOR]}})
    assert ask == Ask("ranker", (Tensor("item", "INT64", (1,), bytes(8)),), 1.0, ("score",))
    assert ask.size == 8


@pytest.mark.parametrize(
    "ask",
    [
        None,
        [],
        {},
        7,
        GOOD_ASK | {"model": 7},
        GOOD_ASK | {"timeout_s": 0},
        GOOD_ASK | {"timeout_s": 31},
        GOOD_ASK | {"timeout_s": "soon"},
        GOOD_ASK | {"timeout_s": 10**400},
        GOOD_ASK | {"outputs": "score"},
        GOOD_ASK | {"outputs": ["o"] * 33},
        GOOD_ASK | {"inputs": [TENSOR] * 33},
        GOOD_ASK | {"inputs": [TENSOR | {"shape": [-1]}]},
        GOOD_ASK | {"inputs": [TENSOR | {"shape": [True]}]},
        GOOD_ASK | {"inputs": [TENSOR | {"shape": [2**63]}]},
        GOOD_ASK | {"inputs": [TENSOR | {"shape": [1] * 65}]},
        GOOD_ASK | {"inputs": [TENSOR | {"content": "%%%"}]},
        GOOD_ASK | {"inputs": [TENSOR | {"content": "A" * 4 * 90_000}]},
        GOOD_ASK | {"inputs": [TENSOR | {"name": None}]},
        GOOD_ASK | {"inputs": ["item"]},
    ],
)
def test_a_malformed_ask_breaks_the_protocol(ask):
    with pytest.raises(ProtocolFault):
        parse_ask({"id": 3, "ask": ask})


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
        lambda children: (
            st.lists(children, max_size=3) | st.dictionaries(st.sampled_from([*GOOD_ASK, *TENSOR]), children)
        ),
        max_leaves=20,
    )
)
def test_whatever_a_worker_asks_is_read_or_breaks_the_protocol(value):
    for ask in (value, GOOD_ASK | {"inputs": value}, GOOD_ASK | {"inputs": [value]}):
        try:
            parse_ask({"ask": ask})
        except ProtocolFault:
            continue


def test_an_answer_goes_to_the_worker_as_its_asker_reads_it():
    tensor = Tensor("score", "FP32", (2, 1), bytes(8))
    assert json.loads(reply_to_ask(3, Reply((tensor,)))) == {
        "id": 3,
        "answer": {
            "outputs": [{"name": "score", "datatype": "FP32", "shape": [2, 1], "content": "AAAAAAAAAAA="}]
        },
    }
    assert json.loads(reply_to_ask(3, Reply(why="late"))) == {"id": 3, "answer": {"why": "late"}}
    assert json.loads(reply_to_ask(3, Reply(refusal="no"))) == {"id": 3, "answer": {"refused": "no"}}
