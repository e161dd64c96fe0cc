import json

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid, Precondition
from libs.task.manifest import MIB, Blob, CheckedHealth, CheckedLimits, check_manifest
from libs.task.testing import SCRIPT, blob_ref, make_manifest, trigger_json


def test_a_whole_manifest_becomes_plain_types():
    pipeline = {
        "n": {
            "source": {"event": "rate"},
            "ops": [{"window": {"size": "1d"}}, {"reduce": {"n": {"fn": "count"}}}],
        }
    }
    manifest = make_manifest(
        trigger=trigger_json("rate", within="5s"),
        pipeline=json.dumps(pipeline),
        resources={"data/a.json": b"{}", "data/b.json": b"{}"},
        uploads={"profile": [("counts", "number_map")]},
        wall_time_s=2.5,
    )
    manifest.min_agent_version = "0.2.0"
    manifest.python_versions.append("3.11")
    checked = check_manifest(manifest)
    assert checked.key == "genres@1.0.0"
    (phase,) = checked.phases
    assert (phase.kind, phase.entry_point, phase.path, phase.argument_count) == ("pre", "pre", "pre.py", 1)
    phase.compile(SCRIPT)
    assert [resource.path for resource in checked.resources] == ["data/a.json", "data/b.json"]
    assert checked.trigger.within_s == 5
    assert checked.pipeline.horizon_s == 86400
    assert checked.limits.wall_time_s == 2.5
    assert checked.uploads["profile"].encode({"counts": {"War": 1}}) == b'{"counts":{"War":1}}'
    script, data = blob_ref(SCRIPT), blob_ref(b"{}")
    assert checked.blobs == (Blob(script.digest, script.size_bytes), Blob(data.digest, 2))


def test_defaults_are_applied_once_here():
    checked = check_manifest(make_manifest())
    assert checked.limits == CheckedLimits(1.0, 256 * MIB, 64)
    assert checked.health == CheckedHealth(1, 3600.0, 3)
    assert (checked.isolation, checked.min_agent_version, checked.python_versions) == (
        "process",
        (0, 0, 0),
        (),
    )
    assert checked.pipeline.features == ()
    bare = make_manifest(uploads={"s": [("a", "string")]})
    assert check_manifest(bare).uploads["s"].fields["a"].max_bytes == 1024


def test_both_phases_may_share_a_script():
    manifest = make_manifest()
    manifest.phases.add(
        kind=manifest_pb2.Phase.KIND_POST, script=blob_ref(SCRIPT), entry_point="post", path="pre.py"
    )
    pre, post = check_manifest(manifest).phases
    assert (pre.argument_count, post.argument_count) == (1, 2)
    manifest.phases[1].script.CopyFrom(blob_ref(b"other"))
    with pytest.raises(Invalid, match=r'phases\[1\]\.path: "pre\.py" names another file already'):
        check_manifest(manifest)


def broken(change):
    manifest = make_manifest(resources={"a": b"1", "b": b"2"}, uploads={"s": [("x", "number")]})
    change(manifest)
    return manifest


def assign(path, value):
    """Set a member of the manifest, such as `phases[0].path`."""

    def change(manifest):
        *parents, last = path.replace("[", ".").replace("]", "").split(".")
        target = manifest
        for part in parents:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        setattr(target, last, value)

    return change


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("task", "Genres", "task: 'Genres' is not an id"),
        ("task", "", "task: "),
        ("version", "1/2", "version: '1/2' is not a version"),
        ("phases[0].kind", 0, "phases[0].kind: must be pre or model or post, not 0"),
        ("phases[0].entry_point", "a.b", 'must be the name of a top-level function, not "a.b"'),
        ("phases[0].entry_point", "def", "phases[0].entry_point"),
        ("phases[0].path", "../pre.py", "phases[0].path: must not contain"),
        ("phases[0].path", "", "phases[0].path: must be a relative path"),
        ("phases[0].script.digest", "sha256:ABC", 'phases[0].script.digest: must be "sha256:" and 64'),
        ("phases[0].script.size_bytes", 1 << 21, "phases[0].script.size_bytes: must be at most 1048576"),
        ("resources[1].path", "a", 'resources[1].path: "a" is there already'),
        ("resources[1].path", "a/b", 'resources[1].path: "a/b" needs a folder where "a" is a file'),
        ("resources[0].path", "/etc/passwd", "resources[0].path: must be relative"),
        ("resources[0].sharing", 0, "resources[0].sharing: must be shared or exclusive"),
        ("resources[0].blob.digest", "", "resources[0].blob.digest"),
        ("resources[0].blob.size_bytes", 1 << 31, "resources[0].blob.size_bytes"),
        ("trigger_json", "", "trigger_json: is missing"),
        ("trigger_json", '{"sequence": [}', "trigger: line 1, column 15"),
        ("pipeline_json", "[]", "pipeline: line 1, column 1"),
        ("isolation", 9, "isolation: value 9 is unknown; a newer agent may be needed"),
        ("limits.memory_bytes", 1 << 20, "limits.memory_bytes: must be from 67108864 to 42949"),
        ("limits.pending_count", 4097, "limits.pending_count: must be from 1 to 4096"),
        ("limits.wall_time.seconds", 61, "must be more than 0 and at most 60 seconds, not 61"),
        ("limits.wall_time.seconds", -1, "limits.wall_time"),
        ("limits.wall_time.nanos", 2_000_000_000, "limits.wall_time"),
        ("health.confirm_run_count", 1001, "health.confirm_run_count: must be from 1 to 1000"),
        ("health.max_failure_count", 1001, "health.max_failure_count"),
        ("health.confirm_idle_time.seconds", 31 * 86400, "health.confirm_idle_time"),
        ("uploads[0].stream", "S", "uploads[0].stream"),
        ("uploads[0].fields[0].name", "X", "uploads[0].fields[0].name"),
        ("uploads[0].fields[0].type", 0, "uploads[0].fields[0].type: must be one of number, string"),
        ("uploads[0].fields[0].type", 6, "uploads[0].fields[0].type"),
        ("uploads[0].fields[0].max_bytes", 65537, "uploads[0].fields[0].max_bytes"),
        ("min_agent_version", "1.2", 'min_agent_version: must be "MAJOR.MINOR.PATCH"'),
    ],
)  # fmt: skip
def test_each_fault_names_its_field(path, value, says):
    with pytest.raises(Invalid) as caught:
        check_manifest(broken(assign(path, value)))
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.ClearField("phases"), "phases: a task needs at least one phase"),
        (lambda m: m.phases.append(m.phases[0]), "phases[1].kind: phases run in the order pre, model, post"),
        (lambda m: m.resources.extend([m.resources[0]] * 256), "resources: a task has at most 256"),
        (lambda m: m.uploads.append(m.uploads[0]), 'uploads[1].stream: "s" is there already'),
        (lambda m: m.uploads.extend([m.uploads[0]] * 16), "uploads: a task has at most 16"),
        (lambda m: m.uploads[0].ClearField("fields"), "uploads[0].fields: must be 1 to 64, not 0"),
        (
            lambda m: m.uploads[0].fields.append(m.uploads[0].fields[0]),
            'fields[1].name: "x" is there already',
        ),
        (lambda m: m.python_versions.extend(["3.11", "3"]), "python_versions[1]: must be"),
        (lambda m: m.python_versions.extend(["3.11", "3.11"]), 'python_versions[1]: "3.11" is there already'),
        (lambda m: m.python_versions.extend(f"3.{i}" for i in range(17)), "has 17 entries, more than 16"),
    ],
)
def test_each_fault_of_a_list_names_its_field(change, says):
    with pytest.raises(Invalid) as caught:
        check_manifest(broken(change))
    assert says in caught.value.message


def test_one_digest_has_one_size():
    manifest = make_manifest(resources={"a": b"1", "b": b"1"})
    manifest.resources[1].blob.size_bytes = 7
    with pytest.raises(Invalid, match=r"resources\[1\]: gives sha256:[0-9a-f]+ another size"):
        check_manifest(manifest)


def test_a_huge_manifest_is_refused_before_it_is_looked_at():
    manifest = make_manifest(trigger=" " * (1 << 20))
    with pytest.raises(Invalid) as caught:
        check_manifest(manifest)
    assert caught.value.reason == "TOO_LARGE"


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_mutated_bytes_raise_invalid_and_nothing_else(noise, at, byte):
    good = bytearray(
        make_manifest(resources={"a": b"1"}, uploads={"s": [("x", "number")]}).SerializeToString()
    )
    good[at % len(good)] = byte
    for data in (noise, bytes(good)):
        manifest = manifest_pb2.TaskManifest()
        try:
            manifest.ParseFromString(data)
        except DecodeError:
            continue
        try:
            checked = check_manifest(manifest)
        except Invalid:
            continue
        assert checked.phases


def test_a_version_says_where_it_runs():
    manifest = make_manifest()
    manifest.min_agent_version = "0.10.0"
    manifest.python_versions.extend(["3.11", "3.12"])
    checked = check_manifest(manifest)
    checked.check_runs_on("0.10.0", "3.12")
    checked.check_runs_on("1.0.0", "3.11")
    with pytest.raises(
        Precondition, match=r"genres@1\.0\.0 needs agent 0\.10\.0 or newer; this one is 0\.9\.9"
    ) as caught:
        checked.check_runs_on("0.9.9", "3.11")
    assert caught.value.reason == "AGENT_TOO_OLD"
    with pytest.raises(Precondition, match=r"runs on Python 3\.11, 3\.12; this one is 3\.13") as caught:
        checked.check_runs_on("0.10.0", "3.13")
    assert caught.value.reason == "PYTHON_UNSUPPORTED"
    with pytest.raises(Invalid, match="agent_version"):
        checked.check_runs_on("new", "3.11")
    with pytest.raises(Invalid, match="python_version"):
        checked.check_runs_on("1.0.0", "3")


def test_a_tiny_wall_time_is_kept():
    manifest = make_manifest()
    manifest.limits.wall_time.CopyFrom(Duration(nanos=1_000_000))
    assert check_manifest(manifest).limits.wall_time_s == 0.001
