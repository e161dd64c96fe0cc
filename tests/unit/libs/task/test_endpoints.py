"""Endpoints: what a manifest may declare, and what a request may then hold."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid, Precondition
from libs.task.endpoints import (
    Endpoint,
    EndpointInput,
    check_endpoints,
    endpoints_from_value,
    find_endpoint,
)
from libs.task.manifest import Blob, check_manifest
from libs.task.source import manifest_from_dict
from libs.task.tensor import DATATYPES, MAX_CONTENT_BYTES, Tensor, tensor_fault
from libs.task.testing import attempt, make_manifest

RANKER = Endpoint(
    "ranker",
    {"item": EndpointInput("item", "INT64", 1), "history": EndpointInput("history", "INT64", 4)},
)
ITEM = Tensor("item", "INT64", (1,), bytes(8))
TASK = {
    "task": "click",
    "version": "1",
    "phases": [{"kind": "post", "script": "task.py"}],
    "trigger": {"sequence": [{"event": "view"}]},
}


def from_json(endpoints, **members):
    source = manifest_from_dict({**TASK, "endpoints": endpoints, **members}, Path())
    return check_manifest(source.manifest({path: Blob(f"sha256:{0:064x}", 1) for path in source.files}))


def test_what_a_task_json_declares_arrives_checked():
    declared = {"ranker": {"item": "INT64", "history": {"datatype": "INT64", "max_elements": 200}}}
    checked = from_json(declared)
    assert checked.endpoints == {
        "ranker": Endpoint(
            "ranker",
            {"item": EndpointInput("item", "INT64", 1024), "history": EndpointInput("history", "INT64", 200)},
        )
    }
    assert checked.min_agent_version == (0, 3, 0)
    with pytest.raises(Precondition, match=r"needs agent 0\.3\.0 or newer; this one is 0\.2\.0"):
        checked.check_runs_on("0.2.0", "3.11")
    checked.check_runs_on("0.3.0", "3.11")
    assert from_json({}).endpoints == {}


@pytest.mark.parametrize(
    ("endpoints", "says"),
    [
        ([], "$.endpoints: must be an object from model names"),
        ({"ran ker": {"x": "FP32"}}, '$.endpoints["ran ker"]: "ran ker" is no model'),
        ({"..": {"x": "FP32"}}, '".." is no model'),
        ({"ranker": {}}, "$.endpoints.ranker: must be an object from 1 to 32 input names"),
        ({"ranker": "FP32"}, "$.endpoints.ranker: must be an object from 1 to 32 input names"),
        ({"ranker": {f"x{i}": "FP32" for i in range(33)}}, "must be an object from 1 to 32"),
        ({"ranker": {"": "FP32"}}, "must be 1 to 128 bytes"),
        ({"ranker": {"é" * 65: "FP32"}}, "must be 1 to 128 bytes"),
        ({"ranker": {"x": "FP31"}}, "$.endpoints.ranker.x: must be one of BOOL, INT8"),
        ({"ranker": {"x": "fp32"}}, "did you mean 'FP32'?"),
        ({"ranker": {"x": {"type": "FP32"}}}, "datatype"),
        ({"ranker": {"x": {"datatype": "BYTES"}}}, "$.endpoints.ranker.x.datatype: must be one of"),
        ({"ranker": {"x": {"datatype": "FP32", "max_elements": 0}}}, "from 1 to 65536"),
        ({"ranker": {"x": {"datatype": "FP32", "max_elements": 65537}}}, "from 1 to 65536"),
        ({f"m{i}": {"x": "FP32"} for i in range(17)}, "at most 16 endpoints"),
    ],
)
def test_a_fault_in_task_json_is_named(endpoints, says):
    with pytest.raises(Invalid) as caught:
        from_json(endpoints)
    assert says in caught.value.message


def test_an_older_agent_cannot_be_asked_for():
    with pytest.raises(Invalid, match=r'asking endpoints needs "0\.3\.0" or newer, not "0\.2\.9"'):
        from_json({"ranker": {"x": "FP32"}}, min_agent_version="0.2.9")
    assert from_json({"ranker": {"x": "FP32"}}, min_agent_version="0.4.0").min_agent_version == (0, 4, 0)


def test_a_manifest_that_asks_of_an_older_agent_is_refused():
    manifest = make_manifest()
    manifest.endpoints.add(model="ranker").inputs.add(name="x", datatype="FP32")
    with pytest.raises(Invalid, match=r"min_agent_version: must be 0\.3\.0 or newer: older agents ask no"):
        check_manifest(manifest)
    manifest.min_agent_version = "0.3.0"
    assert check_manifest(manifest).endpoints["ranker"].inputs["x"].max_elements == 1024


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: e.add(model="a b"), "endpoints[1].model:"),
        (lambda e: e.add(model="ranker"), 'endpoints[1].model: "ranker" is there already'),
        (lambda e: e.add(model="other"), "endpoints[1].inputs: must be 1 to 32, not 0"),
        (lambda e: e[0].inputs.add(name="x", datatype="FP32"), 'endpoints[0].inputs[1].name: "x" is there'),
        (lambda e: e[0].inputs.add(name="", datatype="FP32"), "endpoints[0].inputs[1].name: must be 1 to"),
        (lambda e: e[0].inputs.add(name="y", datatype="BYTES"), "endpoints[0].inputs[1].datatype:"),
        (
            lambda e: e[0].inputs.add(name="y", datatype="FP32", max_element_count=65537),
            "endpoints[0].inputs[1].max_element_count: must be at most 65536",
        ),
        (lambda e: [e.add(model=f"m{i}").inputs.add(name="x", datatype="BOOL") for i in range(16)], "16"),
    ],
)
def test_a_fault_in_a_manifest_is_named(change, says):
    manifest = make_manifest()
    manifest.endpoints.add(model="ranker").inputs.add(name="x", datatype="FP32")
    change(manifest.endpoints)
    with pytest.raises(Invalid) as caught:
        check_endpoints(manifest.endpoints)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("tensors", "reason", "says"),
    [
        ([], "BAD_REQUEST", "at least one input"),
        ([replace(ITEM, name="itm")], "INPUT_UNDECLARED", "did you mean 'item'?"),
        ([ITEM, ITEM], "BAD_REQUEST", "is there twice"),
        ([replace(ITEM, datatype="INT32")], "INPUT_TYPE", "must be INT64"),
        ([replace(ITEM, shape=(2,))], "INPUT_TYPE", "has 8 bytes where its shape needs 16"),
        ([replace(ITEM, shape=(-1,))], "INPUT_TYPE", "negative dimension"),
        ([replace(ITEM, shape=(1,) * 9)], "INPUT_TYPE", "9 dimensions"),
        ([replace(ITEM, shape=(2**40, 2**40))], "INPUT_TYPE", "too many elements"),
        ([replace(ITEM, shape=(0, 2**40, 2**40))], "INPUT_TYPE", "too many elements"),
        ([Tensor("item", "INT64", (2,), bytes(16))], "INPUT_TOO_LARGE", "more than the declared 1"),
        ([Tensor("item", "INT64", (0, 7), b"")], "INPUT_TOO_LARGE", "a dimension of 7, more than"),
    ],
)
def test_a_request_that_is_not_declared_is_refused_whole(tensors, reason, says):
    with pytest.raises(Invalid) as caught:
        RANKER.check(tensors)
    assert caught.value.reason == reason
    assert says in caught.value.message


def test_a_declared_request_passes_and_may_leave_inputs_out():
    RANKER.check([ITEM, Tensor("history", "INT64", (2, 2), bytes(32))])
    RANKER.check([Tensor("history", "INT64", (0,), b"")])
    RANKER.check([Tensor("item", "INT64", (), bytes(8))])


def test_all_inputs_together_are_bounded():
    wide = Endpoint("m", {name: EndpointInput(name, "FP64", 65536) for name in ("a", "b")})
    half = MAX_CONTENT_BYTES // 2
    wide.check([Tensor(name, "FP64", (half // 8,), bytes(half)) for name in ("a", "b")])
    with pytest.raises(Invalid, match="bytes together, more than"):
        wide.check(
            [Tensor("a", "FP64", (half // 8,), bytes(half)), Tensor("b", "FP64", (20000,), bytes(160000))]
        )


def test_an_undeclared_model_is_named_with_what_is_declared():
    assert find_endpoint({"ranker": RANKER}, "ranker") is RANKER
    with pytest.raises(Invalid, match=r"it declares: ranker; did you mean 'ranker'\?") as caught:
        find_endpoint({"ranker": RANKER}, "rankr")
    assert caught.value.reason == "MODEL_UNDECLARED"
    with pytest.raises(Invalid, match="it declares: none"):
        find_endpoint({}, "x" * 10_000)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 70000)
    | st.sampled_from([*DATATYPES, "x", "datatype", "\ud800"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["ranker", "x", "datatype", "max_elements", "\ud800"]), children)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_anything_in_task_json_is_read_or_refused(value):
    read, _ = attempt(endpoints_from_value, value, "$.endpoints")
    if read is not None:
        names = check_endpoints([manifest_pb2.Endpoint.FromString(e.SerializeToString()) for e in read])
        assert list(names) == list(value)
        json.dumps(value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_of_a_manifest_are_read_or_refused(data):
    manifest = manifest_pb2.TaskManifest()
    try:
        manifest.ParseFromString(data)
    except Exception:
        return
    attempt(check_endpoints, manifest.endpoints)


TENSORS = st.builds(
    Tensor,
    st.sampled_from(["item", "history", "x", ""]),
    st.sampled_from([*DATATYPES, "", "BYTES"]),
    st.lists(st.integers(-1, 5) | st.integers(), max_size=10).map(tuple),
    st.binary(max_size=64),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TENSORS, max_size=3))
def test_whatever_passes_is_declared_and_whole(tensors):
    _, refusal = attempt(RANKER.check, tensors)
    if refusal is None:
        assert {tensor.name for tensor in tensors} <= {"item", "history"}
        for tensor in tensors:
            assert not tensor_fault(tensor)
            assert tensor.datatype == "INT64"
            assert math.prod(tensor.shape) * 8 == len(tensor.content) <= 32
