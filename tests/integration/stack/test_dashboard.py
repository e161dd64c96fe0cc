"""Every panel of the dashboards shows something while devices work: the demo is the load."""

import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from deploy.local import topology
from deploy.local.errors import StackError
from deploy.local.fetch import find_prometheus
from deploy.local.layout import ROOT, cache_folder
from deploy.local.ports import free_offset
from deploy.local.stack import Stack
from services.serving.testing_models import scale
from tests.integration.system.agents import Agent, event
from tests.integration.system.world import publish, tenant, until

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))


def relu() -> bytes:
    """Return a small ONNX model."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = made.SerializeToString()
    return data


def write_log(path: Path) -> Path:
    """Write a log of twelve users, each of whom looks at things of three kinds in turn."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "type", "time", "kind"])
        for user in range(12):
            for number in range(2000):
                rows.writerow(
                    [f"user-{user}", "view", 1_700_000_000 + 60 * number, f"kind-{(user + number) % 3}"]
                )
    return path


ASKING = """
def run(context):
    answer = context.ask("scale", {"x": [[1.0, 2.0]]}, timeout="10s")
    return {"y": None if answer is None else answer["y"].tolist()}
"""
ENDPOINTS = {"scale": {"x": {"datatype": "FP32", "max_elements": 2}}}


@contextmanager
def devices(stack: Stack, folder: Path) -> Iterator[Callable[[], None]]:
    """Have a device whose task asks a model in the cloud; give what makes everybody do something once."""
    model = folder / "scale.onnx"
    model.write_bytes(scale(2.0, 2))
    with tenant(stack, "seen") as cloud, ExitStack() as ends:
        cloud.isthmus("endpoint", "deploy", "scale", str(model))
        asking = publish(cloud, "asking", "1", ASKING, endpoints=ENDPOINTS)
        agent = Agent("d1", cloud.home / "d", cloud.gateway, cloud.enrolment_token())
        ends.callback(agent.stop)
        agent.start()
        cloud.isthmus("release", "create", asking.key)
        until("the task to run", lambda: agent.runs() == {asking.key}, lambda: (agent.status(), agent.log))
        numbers = itertools.count(1)

        def work() -> None:
            number = next(numbers)
            cloud.isthmus("endpoint", "infer", "scale", "--inputs", '{"x": [[1, 2]]}')
            quick = (
                "--vary",
                "max_batch_rows=1,8",
                "--trials",
                "2",
                "--concurrency",
                "2",
                "--duration",
                "1s",
            )
            cloud.isthmus("tune", "run", "scale", "--id", f"e{number}", *quick, "--watch")
            publish(cloud, "tried", str(number), ASKING, endpoints=ENDPOINTS)
            agent.send(*(event(n, f"e{number}-{n}") for n in range(20)))
            until("the runs", lambda: len(agent.results()) >= 20 * number, lambda: agent.log)

        yield work


@pytest.mark.timeout(900)
def test_every_panel_shows_something_under_load(tmp_path: Path) -> None:
    try:
        find_prometheus(cache_folder(os.environ), lambda text: None)
    except StackError as error:
        pytest.skip(f"no Prometheus here: {error}")
    # Not under tmp_path: the agent's socket needs a short path.
    with (
        tempfile.TemporaryDirectory(prefix="ist-", dir="/tmp") as folder,
        Stack(home := Path(folder) / "s", free_offset(Stack(home).ports()), without=["grafana"]) as stack,
        ExitStack() as ends,
    ):
        stack.up()
        since = time.time()
        demo = [sys.executable, "-m", "examples.demo", "--home", str(home), "--devices", "4"]
        demo += ["--replay-s", "10"]
        offset = ["--port-offset", str(stack.options.port_offset)]
        log = ["--data", str(write_log(tmp_path / "views.csv"))]

        model = tmp_path / "model.onnx"
        model.write_bytes(relu())
        isthmus = [str(Path(sys.executable).with_name("isthmus"))]
        commands = (
            [*demo, *offset, *log],
            [*isthmus, "job", "submit", "--watch", "--", "python", "-c", "print(1)"],
            [*isthmus, "model", "optimize", str(model)],
        )
        work = ends.enter_context(devices(stack, tmp_path))

        def load() -> None:
            work()
            for command in commands:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "ISTHMUS_HOME": str(home)},
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, done.stdout + done.stderr

        def values(expression: str) -> int:
            """Return how many values the expression had since the load began."""
            query = urllib.parse.urlencode(
                {"query": expression, "start": since, "end": time.time(), "step": 5}
            )
            port = topology.PROMETHEUS + stack.options.port_offset
            url = f"http://127.0.0.1:{port}/api/v1/query_range?{query}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                series = json.load(answer)["data"]["result"]
            return sum(text != "NaN" for one in series for _, text in one["values"])

        empty = [
            (panel["title"], target["expr"])
            for path in DASHBOARDS
            for panel in json.loads(path.read_text("utf-8"))["panels"]
            for target in panel.get("targets", ())
        ]
        # A rate needs scrapes before, during and after: how many loads it takes to be scraped so is chance.
        for _ in range(4):
            load()
            empty = [(title, expression) for title, expression in empty if not values(expression)]
            if not empty:
                break
        scraped = {
            process.name
            for process in stack.processes()
            if any(endpoint.what == "metrics" for endpoint in process.endpoints)
        }
        assert len(scraped) >= 10
        assert {
            name for name in scraped if not values(f'up{{job="isthmus", service="{name}"}} == 1')
        } == set()
    assert empty == []
