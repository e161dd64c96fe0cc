import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.manifest import Blob, check_manifest
from libs.task.source import manifest_from_dict, read_task_json

BASE = Path("/tasks/genres")
GOOD = {
    "task": "genres",
    "version": "1.0.0",
    "phases": [
        {"kind": "pre", "script": "task.py"},
        {"kind": "post", "script": "task.py", "entry_point": "finish"},
    ],
    "resources": [{"path": "data/names.json"}, {"path": "mine.json", "sharing": "exclusive"}],
    "trigger": {"sequence": [{"event": "rate"}], "within": "30s"},
    "pipeline": {
        "genres": {
            "source": {"event": "rate"},
            "ops": [{"window": {"size": "30d"}}, {"reduce": {"n": {"fn": "count", "by": "genres"}}}],
        }
    },
    "limits": {"wall_time": "1500ms", "memory_mib": 128, "pending_count": 8},
    "uploads": {"profile": {"counts": "number_map", "user": {"type": "string", "max_bytes": 64}}},
    "health": {"confirm_run_count": 2, "confirm_idle_time": "10m", "max_failure_count": 5},
    "min_agent_version": "0.1.0",
    "python_versions": ["3.11", "3.12"],
}  # fmt: skip


def blobs_of(source):
    return {path: Blob(f"sha256:{i:064x}", 10 + i) for i, path in enumerate(source.files)}


def test_everything_that_is_written_arrives_in_the_manifest():
    source = read_task_json(json.dumps(GOOD), BASE)
    assert source.scripts == (BASE / "task.py",)
    assert source.files == (BASE / "task.py", BASE / "data/names.json", BASE / "mine.json")
    checked = check_manifest(source.manifest(blobs_of(source)))
    assert checked.key == "genres@1.0.0"
    assert [(p.kind, p.path, p.entry_point) for p in checked.phases] == [
        ("pre", "task.py", "pre"),
        ("post", "task.py", "finish"),
    ]
    assert [(r.path, r.sharing, r.blob.size_bytes) for r in checked.resources] == [
        ("data/names.json", "shared", 11),
        ("mine.json", "exclusive", 12),
    ]
    assert checked.trigger.to_json() == GOOD["trigger"]
    assert checked.pipeline.features[0].window_s == 30 * 86400
    assert (checked.limits.wall_time_s, checked.limits.memory_bytes, checked.limits.pending_count) == (
        1.5,
        128 << 20,
        8,
    )
    fields = checked.uploads["profile"].fields
    assert {name: (field.type, field.max_bytes) for name, field in fields.items()} == {
        "counts": ("number_map", 1024),
        "user": ("string", 64),
    }
    assert (
        checked.health.confirm_run_count,
        checked.health.confirm_idle_s,
        checked.health.max_failure_count,
    ) == (2, 600, 5)
    assert checked.min_agent_version == (0, 1, 0)
    assert checked.python_versions == ("3.11", "3.12")


def test_the_least_that_is_enough():
    least = {name: GOOD[name] for name in ("task", "version", "phases", "trigger")}
    source = manifest_from_dict(least, BASE)
    checked = check_manifest(source.manifest(blobs_of(source)))
    assert (checked.uploads, checked.resources, checked.pipeline.features) == ({}, (), ())


def test_a_file_that_was_not_uploaded_is_named():
    source = manifest_from_dict(GOOD, BASE)
    with pytest.raises(Invalid, match=r"file /tasks/genres/task\.py has not been uploaded"):
        source.manifest({})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"triger": {}}, "$.triger: unknown key \"triger\""),
        ({"triger": {}}, "did you mean 'trigger'?"),
        ({"task": "My Task"}, "$.task: 'My Task' is not an id"),
        ({"task": 5}, "$.task: must be a string, not 5"),
        ({"version": "a b"}, "$.version: 'a b' is not a version"),
        ({"phases": []}, "$.phases: must have 1 to 3 elements"),
        ({"phases": [{"kind": "per", "script": "a.py"}]}, "did you mean 'pre'?"),
        ({"phases": [{"kind": "modle", "plan": "a.plan"}]}, "did you mean 'model'?"),
        ({"phases": [{"kind": "modle", "plan": "a.plan"}]}, "$.phases[0].kind: must be one of pre, model"),
        ({"phases": [GOOD["phases"][1], GOOD["phases"][0]]}, "$.phases[1].kind: phases run in the order"),
        ({"phases": [{"kind": "pre", "script": "../a.py"}]}, "$.phases[0].script: must not contain"),
        ({"phases": [{"kind": "pre", "script": "a.py", "entrypoint": "x"}]}, "did you mean 'entry_point'?"),
        ({"phases": [{"kind": "pre", "script": "a.py", "entry_point": "a b"}]}, "$.phases[0].entry_point"),
        ({"resources": [{"path": "x", "sharing": "everyone"}]}, "sharing: must be one of shared, exclusive"),
        ({"trigger": {"sequence": [{"event": 1}]}}, "$.trigger.sequence[0].event: must be a string"),
        ({"pipeline": {"f": {}}}, '$.pipeline.f: key "source" is missing'),
        ({"limits": {"wall_time": "61s"}}, '$.limits.wall_time: must be at most "1m", not "61s"'),
        ({"limits": {"memory_mib": 63}}, "$.limits.memory_mib: must be an integer from 64 to 4096, not 63"),
        ({"limits": {"memory_mb": 64}}, "did you mean 'memory_mib'?"),
        ({"uploads": []}, "$.uploads: must be an object from stream names"),
        ({"uploads": {"Bad": {"a": "number"}}}, "$.uploads.Bad: 'Bad' is not an id"),
        ({"uploads": {"s": {}}}, "$.uploads.s: must be an object from field names"),
        ({"uploads": {"s": {"A": "number"}}}, "$.uploads.s.A: must be 1 to 63 of a-z"),
        ({"uploads": {"s": {"a": "numbr"}}}, "did you mean 'number'?"),
        ({"uploads": {"s": {"a": {"type": "number", "max_bytes": 0}}}}, "$.uploads.s.a.max_bytes"),
        ({"health": {"confirm_run_count": 0}}, "confirm_run_count: must be an integer from 1 to 1000"),
        ({"min_agent_version": "1"}, '$.min_agent_version: must be "MAJOR.MINOR.PATCH"'),
        ({"python_versions": ["3.11", 3.12]}, "$.python_versions[1]: must be"),
    ],
)  # fmt: skip
def test_faults_name_place_value_and_remedy(change, says):
    with pytest.raises(Invalid) as caught:
        read_task_json(json.dumps({**GOOD, **change}, indent=2), BASE)
    assert says in caught.value.message
    assert caught.value.message.startswith("task.json: line ")


def test_a_missing_key_is_named():
    for name in ("task", "version", "phases", "trigger"):
        less = {key: value for key, value in GOOD.items() if key != name}
        with pytest.raises(Invalid, match=f'key "{name}" is missing'):
            read_task_json(json.dumps(less), BASE)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(list(GOOD)), junk, max_size=3))
def test_junk_anywhere_raises_invalid_and_nothing_else(changes):
    try:
        source = manifest_from_dict({**GOOD, **changes}, BASE)
    except Invalid:
        return
    check_manifest(source.manifest(blobs_of(source)))
