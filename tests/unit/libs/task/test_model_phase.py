"""Manifests and task.json with a model: its plan, its place among the phases, the agents that run it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid, Precondition
from libs.task.manifest import Blob, check_manifest
from libs.task.source import read_task_json
from libs.task.testing import SCRIPT, add_model, blob_ref, make_manifest

PLAN = b"a plan"
BASE = Path("/tasks/click")


def with_model(*, post: bool = True, pre: bool = True) -> manifest_pb2.TaskManifest:
    manifest = make_manifest(resources={"names.json": b"{}"})
    if not pre:
        del manifest.phases[:]
    if post:
        kind = manifest_pb2.Phase.KIND_POST
        manifest.phases.add(kind=kind, script=blob_ref(SCRIPT), entry_point="post", path="pre.py")
    add_model(manifest, PLAN)
    return manifest


def test_a_model_stands_between_the_scripts_and_its_plan_is_one_of_the_files():
    checked = check_manifest(with_model())
    assert [(phase.kind, phase.argument_count) for phase in checked.phases] == [("pre", 1), ("post", 2)]
    plan = Blob(blob_ref(PLAN).digest, len(PLAN))
    assert checked.model is not None
    assert (checked.model.path, checked.model.blob, checked.model.sharing) == ("model.plan", plan, "shared")
    assert checked.files["model.plan"] == plan
    assert plan in checked.blobs
    assert [resource.path for resource in checked.resources] == ["names.json"]


@pytest.mark.parametrize(
    ("pre", "post", "arguments"), [(True, False, [1]), (False, True, [2]), (False, False, [])]
)
def test_any_of_the_phases_may_be_missing(pre, post, arguments):
    checked = check_manifest(with_model(pre=pre, post=post))
    assert [phase.argument_count for phase in checked.phases] == arguments
    assert checked.model is not None


def test_without_a_model_there_is_none():
    assert check_manifest(make_manifest()).model is None


def test_older_agents_are_kept_away_with_a_reason():
    checked = check_manifest(with_model())
    checked.check_runs_on("0.2.0", "3.11")
    with pytest.raises(Precondition, match=r"needs agent 0\.2\.0 or newer; this one is 0\.1\.9") as caught:
        checked.check_runs_on("0.1.9", "3.11")
    assert caught.value.reason == "AGENT_TOO_OLD"


def _plan(**changes: Any) -> Callable[[manifest_pb2.TaskManifest], None]:
    return lambda m: m.plans[0].MergeFrom(manifest_pb2.Resource(**changes))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m: m.phases.insert(0, m.phases[1]),
            "phases[1].kind: phases run in the order pre, model, post",
        ),
        (lambda m: m.phases.insert(1, m.phases[1]), "phases[2].kind: phases run in the order"),
        (
            lambda m: setattr(m.phases[1], "path", "modl.plan"),
            'one of plans, not "modl.plan"; there are: model.plan',
        ),
        (lambda m: setattr(m.phases[1], "path", "modl.plan"), "did you mean 'model.plan'?"),
        (lambda m: m.ClearField("plans"), "there are: none"),
        (
            lambda m: setattr(m.phases[1], "entry_point", "run"),
            "phases[1]: is a model: it has a plan, and neither",
        ),
        (lambda m: m.phases[1].script.CopyFrom(blob_ref(SCRIPT)), "phases[1]: is a model"),
        (lambda m: m.ClearField("min_agent_version"), "min_agent_version: must be 0.2.0 or newer"),
        (lambda m: setattr(m, "min_agent_version", "0.1.99"), "older agents run no model phase"),
        (lambda m: m.plans.extend([m.plans[0]] * 16), "plans: a task has at most 16 plans"),
        (lambda m: m.plans.extend([m.plans[0]]), 'plans[1].path: "model.plan" is there already'),
        (lambda m: setattr(m.plans[0], "sharing", 0), "plans[0].sharing: must be shared or exclusive, not 0"),
        (
            lambda m: setattr(m.plans[0].blob, "size_bytes", 2**28 + 1),
            "plans[0].blob.size_bytes: must be at most 268435456",
        ),
        (lambda m: setattr(m.plans[0].blob, "digest", "x"), "plans[0].blob.digest"),
        (lambda m: setattr(m.plans[0], "path", "../x"), "plans[0].path: must not contain"),
        (
            lambda m: m.resources[0].CopyFrom(m.plans[0]),
            'plans[0].path: "model.plan" names another file already',
        ),
        (
            lambda m: setattr(m.resources[0], "path", "model.plan/x"),
            'needs a folder where "model.plan" is a file',
        ),
    ],
)
def test_each_fault_is_named(change, says):
    manifest = with_model()
    change(manifest)
    with pytest.raises(Invalid) as caught:
        check_manifest(manifest)
    assert says in caught.value.message


TASK: dict[str, Any] = {
    "task": "click",
    "version": "1",
    "phases": [
        {"kind": "pre", "script": "task.py"},
        {"kind": "model", "plan": "models/click.plan", "sharing": "exclusive"},
        {"kind": "post", "script": "task.py"},
    ],
    "trigger": {"sequence": [{"event": "exposure"}]},
}


def test_task_json_names_the_plan_as_a_file():
    source = read_task_json(json.dumps(TASK), BASE)
    assert source.scripts == (BASE / "task.py",)
    assert source.plans == (BASE / "models/click.plan",)
    assert source.files == (BASE / "task.py", BASE / "models/click.plan")
    blobs = {path: Blob(f"sha256:{i:064x}", 10 + i) for i, path in enumerate(source.files)}
    checked = check_manifest(source.manifest(blobs))
    assert checked.model is not None
    assert (checked.model.path, checked.model.sharing) == ("models/click.plan", "exclusive")
    assert checked.model.blob == blobs[BASE / "models/click.plan"]
    assert checked.min_agent_version == (0, 2, 0)
    newer = read_task_json(json.dumps({**TASK, "min_agent_version": "0.3.0"}), BASE)
    assert newer.draft.min_agent_version == "0.3.0"


MODEL = TASK["phases"][1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"phases": [{"kind": "model"}]}, '$.phases[0]: key "plan" is missing'),
        (
            {"phases": [{"kind": "model", "plan": "a", "script": "b"}]},
            '$.phases[0].script: unknown key "script"',
        ),
        ({"phases": [{"kind": "model", "plam": "a"}]}, "did you mean 'plan'?"),
        ({"phases": [{"kind": "pre", "plan": "a"}]}, '"plan"'),
        ({"phases": [{"kind": "modell", "script": "a"}]}, "did you mean 'model'?"),
        ({"phases": [MODEL, MODEL]}, "$.phases[1].kind: phases run in the order pre, model, post"),
        ({"phases": [{"kind": "model", "plan": "/a"}]}, "$.phases[0].plan: must be relative"),
        ({"phases": [{**MODEL, "sharing": "all"}]}, "$.phases[0].sharing: must be one of shared, exclusive"),
        (
            {"min_agent_version": "0.1.0"},
            '$.min_agent_version: a model phase needs "0.2.0" or newer, not "0.1.0"',
        ),
    ],
)
def test_faults_of_task_json_name_their_place(change, says):
    with pytest.raises(Invalid) as caught:
        read_task_json(json.dumps({**TASK, **change}), BASE)
    assert says in caught.value.message


@settings(max_examples=300)
@given(st.integers(0, 2000), st.integers(0, 255))
def test_mutated_bytes_raise_invalid_and_nothing_else(at, byte):
    good = bytearray(with_model().SerializeToString())
    good[at % len(good)] = byte
    manifest = manifest_pb2.TaskManifest()
    try:
        manifest.ParseFromString(bytes(good))
    except DecodeError:
        return
    try:
        checked = check_manifest(manifest)
    except Invalid:
        return
    assert checked.phases or checked.model
