"""Jobs and models by the command, on a real stack: scheduler, etcd, runner, engine, deployer and gateway."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from deploy.local.ports import free_offset, members
from deploy.local.stack import Stack
from tests.integration.system.world import until

pytestmark = pytest.mark.timeout(300)

WAIT = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\nprint('went')"


COMMAND = Path(sys.executable).with_name("isthmus")


@dataclass(frozen=True, slots=True)
class Started:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    folder: Path

    def printed(self) -> str:
        """Return its standard output so far."""
        return (self.folder / "out").read_text("utf-8")

    def said(self) -> str:
        """Return its standard error so far."""
        return (self.folder / "err").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Desk:
    """A stack, and the command beside it."""

    stack: Stack
    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command; what it says is kept apart."""
        return subprocess.run(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    @contextmanager
    def started(self, *arguments: str) -> Iterator["Started"]:
        """Start a command that goes on; it is killed if it hasn't ended with the block."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with (
            (folder / "out").open("wb") as out,
            (folder / "err").open("wb") as err,
            subprocess.Popen(
                [COMMAND, *arguments], cwd=self.folder, env=self._environment(), stdout=out, stderr=err
            ) as process,
        ):
            try:
                yield Started(process, folder)
            finally:
                process.kill()

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
        return {**mine, "ISTHMUS_HOME": str(self.stack.layout.home)}

    def json(self, *arguments: str) -> Any:
        """Run a command that succeeds; return the value that it printed."""
        done = self.run(*arguments, "--json") if "--" not in arguments else self.run("--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def state(self, job: str) -> str:
        """Return a job's state."""
        return str(self.json("job", "get", job)["status"]["state"])

    def place(self, job: str) -> Path:
        """Return the folder where a job's only worker works."""
        uid = self.json("job", "get", job)["metadata"]["uid"]
        (found,) = self.stack.layout.data_dir("runner").rglob(f"{uid}-*-0/job")
        return found


@contextmanager
def running() -> Iterator[Stack]:
    home = Path(tempfile.mkdtemp(prefix="isc-", dir="/tmp"))
    try:
        offset = free_offset(Stack(home).ports())
        with Stack(home / "s", offset, without=("grafana", "prometheus", "serving", "simulator")) as stack:
            stack.up()
            yield stack
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running() as stack:
        yield stack


@pytest.fixture
def desk(stack: Stack, tmp_path: Path) -> Desk:
    return Desk(stack, tmp_path)


def test_all_of_it_is_healthy(desk: Desk) -> None:
    rows = {row.name: row for row in desk.stack.status()}
    assert set(rows) == {"etcd", "deployer", "tunnel", "engine", "scheduler", "runner", "gateway"}
    assert {name: row.health for name, row in rows.items()} == dict.fromkeys(rows, "")
    services = desk.json("status")
    assert set(services) == {"gateway", "deployer", "tunnel", "engine", "scheduler"}
    assert {each["state"] for each in services.values()} == {"SERVING"}
    (node,) = desk.json("node", "list")
    assert (node["metadata"]["name"], node["status"]["state"]) == ("nodes/local", "STATE_READY")


def test_a_job_brings_its_file_and_leaves_its_artefact(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(
        "import os\nprint('epoch', os.environ['EPOCHS'])\nopen('out.txt', 'w').write('made')\n"
    )
    submit = ("job", "submit", "--id", "train", "--env", "EPOCHS=3", "--cpus", "0.1", "--memory", "64MiB")
    files = ("--file-in", "train.py=train.py", "--artefact", "out=out.txt")
    done = desk.run(*submit, *files, "--watch", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "train  SUCCEEDED"
    assert desk.run("job", "logs", "train").stdout == "epoch 3\n"
    assert desk.run("job", "artefact", "get", "train", "out", "--out", "got.txt").returncode == 0
    assert (desk.folder / "got.txt").read_text() == "made"
    again = desk.run(*submit, *files, "--", "python", "train.py")
    assert again.returncode == 1
    assert "tenants/default/jobs/train" in again.stderr


def test_a_job_that_fails_says_why_and_is_no_success(desk: Desk) -> None:
    done = desk.run("job", "submit", "--id", "fails", "--watch", "--", "python", "-c", "raise SystemExit(3)")
    assert done.returncode == 1
    assert "EXIT_CODE" in done.stderr
    unknown = desk.run("job", "submit", "--id", "typo", "--watch", "--", "pyhton", "x.py")
    assert unknown.returncode == 1
    assert "START_FAILED" in unknown.stderr
    assert "'pyhton'" in unknown.stderr


def test_a_job_that_waits_is_explained_and_cancelled(desk: Desk) -> None:
    desk.json("queue", "create", "narrow", "--cpus", "0.1")
    desk.json("job", "submit", "--id", "wide", "--queue", "narrow", "--cpus", "0.2", "--", "true")
    explained = desk.run("job", "explain", "wide")
    assert "QUOTA_TOO_SMALL" in explained.stdout, explained.stdout
    assert (
        desk.json("job", "explain", "wide")["job"]["status"]["pending"][0]["kind"] == "KIND_QUOTA_TOO_SMALL"
    )
    assert desk.run("queue", "delete", "narrow").returncode == 1
    ended = desk.run("job", "cancel", "wide", "--watch")
    assert ended.returncode == 0, ended.stderr
    assert desk.state("wide") == "STATE_CANCELLED"
    assert desk.run("job", "delete", "wide").returncode == 0
    assert desk.run("queue", "delete", "narrow").returncode == 0


def test_a_cordoned_node_takes_no_work(desk: Desk) -> None:
    desk.json("node", "cordon", "local")
    desk.json("job", "submit", "--id", "held", "--cpus", "0.1", "--", "true")
    assert "CORDONED" in desk.run("job", "explain", "held").stdout
    desk.json("node", "uncordon", "local")
    assert desk.run("job", "watch", "held").returncode == 0


def test_files_are_applied_as_they_say(desk: Desk) -> None:
    (desk.folder / "run.py").write_text("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    path = desk.folder / "all.yaml"
    path.write_text(
        """\
apiVersion: scheduler.isthmus/v1
kind: Queue
metadata: {name: ads}
spec: {quota: {cpuMillis: 1000}}
---
apiVersion: scheduler.isthmus/v1
kind: Job
metadata: {name: pair, labels: {team: ads}}
spec:
  queue: ads
  command: [python, run.py]
  workerCount: 2
  resources: {cpuMillis: 100, memoryBytes: 64MiB}
  files: [{path: run.py, from: run.py}]
"""
    )
    names = ["tenants/default/queues/ads", "tenants/default/jobs/pair"]
    assert desk.run("apply", "-f", str(path), "--dry-run").stdout.splitlines() == [
        f"{name} created (dry run)" for name in names
    ]
    assert desk.run("queue", "get", "ads").returncode == 4
    for outcome in ("created", "unchanged"):
        found = desk.json("apply", "-f", str(path))["objects"]
        assert found == [{"name": name, "outcome": outcome} for name in names]
    assert desk.run("job", "watch", "pair").returncode == 0
    assert desk.run("job", "logs", "pair", "--rank", "1").stdout == "1 2\n"
    path.write_text(
        path.read_text().replace("cpuMillis: 1000", "cpuMillis: 2000").replace("python,", "python3,")
    )
    changed = desk.run("apply", "-f", str(path))
    assert changed.stdout == "tenants/default/queues/ads configured\n"
    assert "a job's never change" in changed.stderr
    assert changed.returncode == 1


@pytest.mark.parametrize("away", ["scheduler", "runner", "gateway"])
def test_watching_and_following_outlive_a_restart(desk: Desk, away: str) -> None:
    name = f"outlives-{away}"
    desk.json(
        "job", "submit", "--id", name, "--cpus", "0.1", "--", "python", "-u", "-c", f"print('came')\n{WAIT}"
    )
    until("the job has begun", lambda: desk.run("job", "logs", name).stdout == "came\n")
    with desk.started("job", "watch", name) as watch, desk.started("job", "logs", "-f", name) as logs:
        # A command that finds no gateway as it starts says so and ends: both must be following before.
        until("the watch has begun", lambda: bool(watch.said()))
        until("the log has come", lambda: logs.printed() == "came\n")
        desk.stack.kill(away)
        desk.stack.wait_healthy()
        (desk.place(name) / "go").touch()
        assert watch.process.wait(60) == 0, watch.said()
        logs.process.wait(60)
        assert logs.printed() == "came\nwent\n", logs.said()
    assert desk.json("job", "get", name)["status"]["attempt_count"] == 1


@pytest.mark.parametrize(
    "restarted", [["engine"], ["scheduler"], ["etcd"], []], ids=lambda names: "".join(names) or "all"
)
def test_the_first_calls_after_a_restart_are_answered(desk: Desk, restarted: list[str]) -> None:
    desk.stack.restart(*restarted)
    assert desk.json("model", "operators")["atomic_operators"]
    done = desk.run("job", "submit", "--watch", "--cpus", "0.1", "--memory", "64MiB", "--", "true")
    assert done.returncode == 0, done.stderr


def model(path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"], name="square"),
        helper.make_node("ReduceSum", ["squares", "axis"], ["y"], name="sum", keepdims=0),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "squares", [x], [y], [axis])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_model_becomes_a_plan_that_is_explained_and_run(desk: Desk) -> None:
    model(desk.folder / "m.onnx")
    done = desk.run("model", "optimize", "m.onnx", "--dim", "batch=1..8", "--out", "m.plan")
    assert done.returncode == 0, done.stderr
    stages = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert [stage for stage in stages if stage in ("read", "decompose", "merge", "lower", "verify")] == [
        "read",
        "decompose",
        "merge",
        "lower",
        "verify",
    ]
    assert "comparisons with ONNX Runtime" in done.stdout
    assert desk.json("model", "optimize", "m.onnx", "--dim", "batch=1..8")["cached"] is True
    steps = desk.json("model", "explain", "m.plan")["steps"]
    assert {step["operator"] for step in steps} >= {"mul", "reduce_sum"}
    assert desk.json("model", "infer", "m.plan", "--inputs", '{"x": [[1, 2], [3, 4]]}') == {"y": [5, 25]}
    wrong = desk.run("model", "infer", "m.plan", "--inputs", '{"x": [[1, 2, 3]]}')
    assert (wrong.returncode, "'x'" in wrong.stderr) == (2, True)
    (desk.folder / "junk.onnx").write_bytes(b"junk")
    assert desk.run("model", "optimize", "junk.onnx").returncode == 2
    assert len(desk.json("model", "operators")["operators"]) >= 30


def test_taking_the_stack_down_ends_what_its_jobs_run(tmp_path: Path) -> None:
    with running() as stack:
        desk = Desk(stack, tmp_path)
        desk.json(
            "job", "submit", "--id", "long", "--cpus", "0.1", "--", "python", "-u", "-c", f"print(1)\n{WAIT}"
        )
        until("the job has begun", lambda: desk.run("job", "logs", "long").stdout == "1\n")
        workers = [each for each in members(str(stack.layout.home)) if WAIT in " ".join(each.cmdline())]
        assert workers
        stack.restart("runner")
        assert desk.state("long") == "STATE_RUNNING"
        assert all(psutil.pid_exists(worker.pid) for worker in workers)
        stack.down()
        assert members(str(stack.layout.home)) == []
