import contextlib
import errno
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName, QueueName
from libs.common.testing import FakeClock
from services.scheduler.domain.objects import JobSpec, Resources, WorkerId, WorkerPlacement, WorkerState
from services.scheduler.runner.assignment import Assignment, ended, environment, inside, launch
from services.scheduler.runner.folder import WorkerFolder

JOB = JobName("acme", "train")


def make(
    *command: str, env: dict[str, str] | None = None, host: str = "127.0.0.1", millis: int = 2500
) -> Assignment:
    spec = JobSpec(QueueName("acme", "default"), command or ("true",), environment=env or {}, worker_count=2)
    return Assignment(
        WorkerId(JOB, "uid1", 3, 1),
        spec,
        WorkerPlacement(1, NodeName("n1"), Resources(millis, 64 * 2**20), (2, 0)),
        master_host=host,
        master_port=20_001,
        local_rank=1,
        deadline=datetime(2026, 1, 1, tzinfo=UTC),
    )


FOLDER = WorkerFolder(Path("/w/uid1-3-1"))


def test_the_jobs_own_variables_win_over_ours_where_they_may() -> None:
    env = environment(make(env={"RANK": "7", "OMP_NUM_THREADS": "9", "PATH": "/mine"}), FOLDER, {})
    assert (env["RANK"], env["OMP_NUM_THREADS"], env["PATH"]) == ("1", "9", "/mine")
    assert env["MKL_NUM_THREADS"] == "2"
    assert env["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert env["ISTHMUS_WORKER"] == "/w/uid1-3-1"
    assert env["HOME"] == "/w/uid1-3-1/job"


def test_a_part_of_a_core_is_one_thread() -> None:
    assert environment(make(millis=500), FOLDER, {})["OMP_NUM_THREADS"] == "1"


def test_a_gang_on_one_machine_talks_over_the_loopback() -> None:
    assert environment(make(), FOLDER, {})["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in environment(make(host="n7.rack"), FOLDER, {})


@given(st.dictionaries(st.text(), st.text()))
def test_next_to_nothing_of_the_runners_environment_is_passed_on(own: dict[str, str]) -> None:
    secret = "s3cret-value"
    env = environment(make(), FOLDER, {**own, "ISTHMUS_KEY": secret, "LD_PRELOAD": secret, "LANG": "C"})
    assert secret not in env.values()
    assert env["LANG"] == "C"


@pytest.mark.parametrize(
    ("command", "env"),
    [((), None), (("",), None), (("a\0b",), None), (("a",), {"x": "\0"}), (("a",), {"a=b": "c"})],
)
def test_what_no_program_can_be_given_is_refused(
    command: tuple[str, ...], env: dict[str, str] | None
) -> None:
    made = make(*command, env=env)
    if not command:
        made = Assignment(made.id, JobSpec(made.spec.queue, ()), made.placement)
    with pytest.raises(Invalid) as caught:
        launch(made, FOLDER, {}, log_bytes=1, process_count=1)
    assert caught.value.reason == "BAD_COMMAND"


@given(st.text() | st.sampled_from(["a/../b", "./a", "a//b", "/a", "..", ".", "a/.", "…/x"]))
def test_no_path_leads_out_of_the_folder(path: str) -> None:
    folder = Path("/w/job")
    with contextlib.suppress(Invalid):
        found = inside(folder, path, "files.path")
        assert found != folder
        assert found.is_relative_to(folder)
        assert ".." not in found.parts


@pytest.mark.parametrize("path", ["", "/a", "..", "a/../b", ".", "a\0b"])
def test_a_path_that_would_is_named(path: str) -> None:
    with pytest.raises(Invalid, match=r"files\.path") as caught:
        inside(Path("/w/job"), path, "files.path")
    assert caught.value.metadata["field"] == "files.path"


def ended_by(folder: WorkerFolder, command: str = "true", **record: object) -> tuple[str, int, str]:
    whole = {
        "reason": "",
        "status": "0",
        "started": "1",
        "end_time": "1700000000.5",
        "peak_memory_bytes": str(70 * 2**20),
        "dropped_bytes": "0",
        "left_behind": "0",
    }
    whole.update({key: str(value) for key, value in record.items()})
    worker = ended(make(command), folder, whole, FakeClock())
    assert (worker.rank, worker.node) == (1, NodeName("n1"))
    started = whole["started"] == "1" and worker.reason != "START_FAILED"
    assert worker.state is (WorkerState.EXITED if started else WorkerState.FAILED)
    return worker.reason, worker.exit_code, worker.message


def test_how_a_worker_ended_is_told_for_people(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path)
    assert ended_by(folder) == ("", 0, "")
    assert ended_by(folder, status=3 << 8) == ("", 3, "")
    assert ended_by(folder, status=int(signal.SIGSEGV)) == ("", 139, "ended by SIGSEGV")
    assert "ran out of memory" in ended_by(folder, status=9)[2]
    reason, code, message = ended_by(folder, status=9, reason="OUT_OF_MEMORY")
    assert (reason, code) == ("OUT_OF_MEMORY", 137)
    assert "70 MiB" in message
    assert "64 MiB" in message
    assert (
        "took 10 KiB of memory and may take"
        in ended_by(folder, status=9, reason="OUT_OF_MEMORY", peak_memory_bytes=10 * 2**10)[2]
    )
    many = ended_by(folder, status=9, reason="TOO_MANY_PROCESSES", processes=257, process_count=256)[2]
    assert many.startswith("had 257 processes and may have 256")
    assert "more processes" in ended_by(folder, status=9, reason="TOO_MANY_PROCESSES")[2], "an older keeper's"
    assert "couldn't be ended" in ended_by(folder, status=9, reason="CANCELLED", left_behind=1)[2]
    assert ended_by(folder, started=0, reason="CANCELLED")[:2] == ("CANCELLED", 0)


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOENT, 127), (errno.EACCES, 126), (errno.E2BIG, 126), (errno.EAGAIN, 0)]
)
def test_a_program_that_couldnt_be_started_has_the_code_of_a_shell(
    tmp_path: Path, number: int, code: int
) -> None:
    reason, got, message = ended_by(
        WorkerFolder(tmp_path), command="nosuchprogram", reason="START_FAILED", started=0, errno=number
    )
    assert (reason, got) == ("START_FAILED", code)
    assert message.startswith("command")
