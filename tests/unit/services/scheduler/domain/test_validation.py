"""What may be asked for: each error names the field, the value and the remedy."""

from dataclasses import replace
from datetime import timedelta

import pytest

from libs.common.errors import Invalid
from libs.common.names import QueueName
from services.scheduler.domain.objects import (
    Artefact,
    BlobRef,
    Facts,
    Gpu,
    JobFile,
    JobSpec,
    Link,
    Nearness,
    Resources,
)
from services.scheduler.domain.validation import check_facts, check_job_spec, check_labels, check_queue_spec

SPEC = JobSpec(QueueName("acme", "default"), ("python", "train.py"))
BLOB = BlobRef("sha256:" + "0" * 64, 1)
FACTS = Facts(Resources(8000, 2**30, 2), (Gpu(0, "simulated", 1), Gpu(1, "simulated", 1)), (Link(0, 1, 9.0),))


def test_what_is_within_bounds_passes() -> None:
    check_job_spec(
        replace(
            SPEC,
            environment={"_A1": ""},
            files=(JobFile("a", BLOB), JobFile("b/c", BLOB)),
            worker_count=1024,
            artefacts=(Artefact("model", "out/m.onnx"),),
            grace=timedelta(0),
            retry_exit_codes=(1, 255),
        ),
        "acme",
    )
    check_labels({"a/b.c": ""})
    check_queue_spec(Resources(1, 1, 1), -1000)
    check_facts(FACTS)


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ({"queue": QueueName("rival", "q")}, "spec.queue", "use one of tenants/acme"),
        ({"command": ()}, "spec.command", "give a program"),
        ({"command": ("",)}, "spec.command", "give a program"),
        ({"command": ("a\0",)}, "spec.command", "leave it out"),
        ({"command": ("a",) * 257}, "spec.command", "at most 256"),
        ({"command": ("a" * 65_537,)}, "spec.command", "at most 65536"),
        ({"environment": {"1A": ""}}, "spec.environment", "use A-Z"),
        ({"environment": {"RANK": "1"}}, "spec.environment", "leave it out"),
        ({"environment": {"ISTHMUS_X": "1"}}, "spec.environment", "leave it out"),
        ({"environment": {"A": "\0"}}, "spec.environment", "leave it out"),
        ({"environment": {f"A{i}": "" for i in range(129)}}, "spec.environment", "at most 128"),
        ({"files": (JobFile("/etc/passwd", BLOB),)}, "spec.files[0].path", "relative path"),
        ({"files": (JobFile("a/../b", BLOB),)}, "spec.files[0].path", "relative path"),
        ({"files": (JobFile("a", BLOB), JobFile("a", BLOB))}, "spec.files", "may come once"),
        ({"files": (JobFile("a", BLOB), JobFile("a/b", BLOB))}, "spec.files", "folder"),
        ({"files": (JobFile("a", BlobRef("md5:0", 1)),)}, "spec.files[0].blob.digest", "sha256"),
        (
            {"files": (JobFile("a", BlobRef(BLOB.digest, 2**32 + 1)),)},
            "spec.files[0].blob.size_bytes",
            "use 0 to 4294967296",
        ),
        ({"files": (JobFile("a", BLOB),) * 257}, "spec.files", "at most 256"),
        ({"worker_count": 1025}, "spec.worker_count", "use 1 to 1024"),
        ({"resources": Resources(gpus=65)}, "spec.resources.gpu_count", "use 0 to 64"),
        ({"resources": Resources(2**63)}, "spec.resources.cpu_millis", "use 0 to"),
        ({"priority": 1001}, "spec.priority", "use -1000 to 1000"),
        ({"nearness": Nearness(min_gpu_bandwidth_gbps=float("nan"))}, "min_gpu_bandwidth", "use 0 to"),
        ({"nearness": Nearness(level=9)}, "spec.placement.level", "use 0 to 8"),
        ({"deadline": timedelta(0)}, "spec.deadline", "1 s to 30 days"),
        ({"deadline": timedelta(days=31)}, "spec.deadline", "1 s to 30 days"),
        ({"retry_count": 101}, "spec.retry_count", "use 0 to 100"),
        ({"retry_exit_codes": (0,)}, "spec.retry_exit_codes", "from 1 to 255"),
        ({"grace": timedelta(minutes=11)}, "spec.grace_time", "at most 10 min"),
        ({"retention": timedelta(days=-1)}, "spec.retention_time", "at most 365 days"),
        ({"artefacts": (Artefact("M", "a"),)}, "spec.artefacts[0].id", "use 1 to 63"),
        ({"artefacts": (Artefact("m", "a"), Artefact("m", "b"))}, "spec.artefacts", "may come once"),
        ({"artefacts": (Artefact("m", ""),)}, "spec.artefacts[0].path", "relative path"),
    ],
)
def test_a_job_out_of_bounds_is_refused(change: dict[str, object], field: str, remedy: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_job_spec(replace(SPEC, **change), "acme")  # type: ignore[arg-type]
    assert field in refused.value.message
    assert remedy in refused.value.message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gpus": (Gpu(0, "a", 1), Gpu(0, "b", 1))}, "comes twice"),
        ({"gpus": tuple(Gpu(i, "a", 1) for i in range(65))}, "at most 64"),
        ({"gpus": (Gpu(0, "a\n", 1), Gpu(1, "a", 1))}, "printable"),
        ({"capacity": Resources(1, 1, 3)}, "more than the 2 GPUs"),
        ({"links": (Link(1, 0, 1.0),)}, "lower first"),
        ({"links": (Link(0, 7, 1.0),)}, "not two GPUs"),
        ({"links": (Link(0, 1, 1.0), Link(0, 1, 2.0))}, "comes twice"),
        ({"links": (Link(0, 1, float("inf")),)}, "not a bandwidth"),
        ({"topology": ("a",) * 9}, "at most 8"),
        ({"topology": ("a b",)}, "use at most"),
        ({"host": "a b"}, "not a host"),
        ({"ports": (5, 4)}, "lower first"),
        ({"ports": (0, 4)}, "1 to 65535"),
        ({"runner_version": "a" * 129}, "longer than 128"),
    ],
)
def test_a_node_out_of_bounds_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        check_facts(replace(FACTS, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [{"": "a"}, {"a" * 64: ""}, {"a": "ü"}, {f"a{i}": "" for i in range(65)}])
def test_labels_out_of_bounds_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=r"metadata\.labels"):
        check_labels(labels)


def test_what_grows_when_it_is_stored_is_counted_as_it_is_stored() -> None:
    escapes = "\x01" * 60_000
    check_job_spec(replace(SPEC, command=("a", escapes)), "acme")
    with pytest.raises(Invalid, match="as JSON"):
        check_job_spec(replace(SPEC, command=("a", escapes), environment={"A": escapes}), "acme")
