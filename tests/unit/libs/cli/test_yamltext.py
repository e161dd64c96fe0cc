"""YAML into messages: what is refused, and where it says the fault lies."""

import contextlib
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from isthmus.scheduler.v1 import object_pb2
from libs.cli.yamltext import Filler, Text
from libs.common.errors import Invalid


def read(text: str, message: object | None = None) -> object:
    source = Text("job.yaml", text)
    found = message if message is not None else object_pb2.JobSpec()
    for node in source.documents():
        Filler(source).fill(found, node, "spec")  # type: ignore[arg-type]
    return found


def refusal(text: str, message: object | None = None) -> Invalid:
    with pytest.raises(Invalid) as refused:
        read(text, message)
    return refused.value


def test_every_kind_of_field_is_read() -> None:
    found = read(
        """
        queue: tenants/t/queues/q
        command: [python, train.py, "5"]
        environment: {EPOCHS: "5", EMPTY: ""}
        workerCount: 2
        resources: {cpuMillis: 500, memoryBytes: 512MiB, gpuCount: 0}
        priority: -3
        placement: {mode: MODE_REQUIRED, level: 1, minGpuBandwidthGbps: 12.5}
        deadline: 90s
        graceTime: 1.5s
        retentionTime: 7d
        retryExitCodes: [1, 137]
        artefacts:
          - id: model
            path: out/model.onnx
        """
    )
    wanted = object_pb2.JobSpec(
        queue="tenants/t/queues/q",
        command=["python", "train.py", "5"],
        environment={"EPOCHS": "5", "EMPTY": ""},
        worker_count=2,
        resources=object_pb2.Resources(cpu_millis=500, memory_bytes=512 * 1024**2),
        priority=-3,
        placement=object_pb2.Placement(
            mode=object_pb2.Placement.MODE_REQUIRED, level=1, min_gpu_bandwidth_gbps=12.5
        ),
        retry_exit_codes=[1, 137],
        artefacts=[object_pb2.Artefact(id="model", path="out/model.onnx")],
    )
    wanted.deadline.FromSeconds(90)
    wanted.grace_time.FromMilliseconds(1500)
    wanted.retention_time.FromSeconds(7 * 86400)
    assert found == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("command: [a]\ncomand: [b]", "job.yaml:2:1: spec: unknown field 'comand'; did you mean 'command'?"),
        ("worker_count: 2", "job.yaml:1:1: spec: unknown field 'worker_count'; did you mean 'workerCount'?"),
        ("xyzzy: 2", "job.yaml:1:1: spec: unknown field 'xyzzy'; there are artefacts, cancelled, command"),
        (
            "command:\n- sleep\n- 5",
            'job.yaml:3:3: spec.command[1]: must be text, not a number; put it in quotes: "5"',
        ),
        ("environment: {FLAG: no}", "job.yaml:1:21: spec.environment.FLAG: must be text, not true or false"),
        ("environment: {DAY: 2020-01-01}", "job.yaml:1:20: spec.environment.DAY: must be text, not a date"),
        (
            "environment: [A]",
            "job.yaml:1:14: spec.environment: must be a mapping of names to values, not a list",
        ),
        ("command: {a: b}", "job.yaml:1:10: spec.command: must be a list, not a mapping"),
        ("command: [[a]]", "job.yaml:1:11: spec.command[0]: must be text, not a list"),
        ("resources: 5", "job.yaml:1:12: spec.resources: must be a mapping of names to values, not a number"),
        ("workerCount: two", "job.yaml:1:14: spec.workerCount: must be a whole number, not 'two'"),
        ("workerCount: 1.5", "job.yaml:1:14: spec.workerCount: must be a whole number, not '1.5'"),
        ("workerCount: -1", "job.yaml:1:14: spec.workerCount: must be at least 0, not -1"),
        ("workerCount: 99999999999", "job.yaml:1:14: spec.workerCount: 99999999999 is far too large"),
        ("workerCount: [1]", "job.yaml:1:14: spec.workerCount: must be a single value, not a list"),
        ("resources: {memoryBytes: lots}", "job.yaml:1:26: spec.resources.memoryBytes: 'lots' is no size"),
        ("deadline: soon", "job.yaml:1:11: spec.deadline: must be a duration such as"),
        ("deadline: [1]", "job.yaml:1:11: spec.deadline: must be a duration such as"),
        ("deadline: 999999999999s", "job.yaml:1:11: spec.deadline: must be a duration such as"),
        ("cancelled: yes", "job.yaml:1:12: spec.cancelled: must be true or false, not 'yes'"),
        (
            "placement: {mode: MODE_REQUIRE}",
            "job.yaml:1:19: spec.placement.mode: unknown value 'MODE_REQUIRE'; did you mean 'MODE_REQUIRED'?",
        ),
        (
            "placement: {minGpuBandwidthGbps: .inf}",
            "job.yaml:1:34: spec.placement.minGpuBandwidthGbps: must be a number",
        ),
        ("queue: a\nqueue: b", "job.yaml:2:1: spec: 'queue' comes twice"),
        ("? [a]\n: b", "job.yaml:1:3: spec: a name must be text"),
        ("queue: &a q", "job.yaml:1:8: anchors and aliases aren't read"),
        ("queue: *a", "job.yaml:1:8: anchors and aliases aren't read"),
        (
            "queue: !!python/name:os.system x",
            "job.yaml:1:8: the tag 'tag:yaml.org,2002:python/name:os.system' isn't read",
        ),
        ("<<: {queue: q}", "job.yaml:1:1: spec: unknown field '<<'"),
        ("queue: [a", "job.yaml:1:10: is no YAML:"),
        ("a: b: c", "job.yaml:1:5: is no YAML:"),
        ("queue: \x00", "job.yaml: is no YAML:"),
        ("[" * 100, "job.yaml:1:33: deeper than 32 levels"),
        ("---\n" * 1001, "more than 1000 documents"),
        ("just text", "job.yaml:1:1: spec: must be a mapping of names to values, not text"),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, said: str) -> None:
    error = refusal(text)
    assert said in error.message
    assert error.reason == "BAD_YAML"


def test_what_is_empty_is_left_as_it_is() -> None:
    assert read("queue:\nresources:\ncommand: ~\ngraceTime: null") == object_pb2.JobSpec()
    assert read("") == object_pb2.JobSpec()
    assert read("# nothing\n---\n---\n") == object_pb2.JobSpec()


def test_json_is_yaml_too() -> None:
    assert read('{"command": ["a", "b"], "workerCount": 3}') == object_pb2.JobSpec(
        command=["a", "b"], worker_count=3
    )


def attempt(text: str) -> None:
    """Read a text; any other error than a refusal that names the file fails the test."""
    with contextlib.suppress(Refused):
        try:
            read(text)
        except Invalid as error:
            raise (Refused if "job.yaml" in error.message else AssertionError)(error.message) from error


class Refused(Exception):
    pass


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates())
NAMES = st.one_of(
    st.sampled_from([field.json_name for field in object_pb2.JobSpec.DESCRIPTOR.fields]), st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


@given(VALUES)
def test_whatever_is_written_is_read_or_refused(value: object) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    attempt(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    attempt(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_it_is_written(value: float) -> None:
    found = read(f"minGpuBandwidthGbps: {value!r}", object_pb2.Placement())
    assert math.isclose(found.min_gpu_bandwidth_gbps, value, rel_tol=0)  # type: ignore[attr-defined]
