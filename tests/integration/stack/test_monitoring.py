"""Prometheus and Grafana beside the services: real Prometheus where there is one, a stand-in for Grafana."""

import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import monitoring, topology
from deploy.local.errors import StackError
from deploy.local.fetch import find_prometheus
from deploy.local.layout import ROOT, Layout, Options, cache_folder
from deploy.local.stack import Stack

COMPUTE = ("engine", "scheduler", "serving", "simulator")
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """Prometheus' binary; the tests that need it are skipped where it isn't to be had."""
    try:
        return find_prometheus(cache_folder(os.environ), lambda text: None)
    except StackError as error:
        pytest.skip(f"no Prometheus here: {error}")


@pytest.fixture
def promtool(prometheus: Path) -> Path:
    return prometheus.with_name("promtool")


@pytest.fixture
def stack(fake_services: None, prometheus: Path, offset: int, tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path / "home", offset, without=["grafana", *COMPUTE]) as stack:
        stack.up()
        yield stack


def ask(stack: Stack, path: str, **query: str) -> Any:
    connection = http.client.HTTPConnection(
        "127.0.0.1", topology.PROMETHEUS + stack.options.port_offset, timeout=30
    )
    try:
        connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        return json.load(connection.getresponse())
    finally:
        connection.close()


def test_the_configuration_and_the_rules_are_sound(promtool: Path) -> None:
    folder = ROOT / "deploy" / "prometheus"
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "rules.yml"]):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_when_they_should(promtool: Path) -> None:
    folder = ROOT / "deploy" / "prometheus"
    done = subprocess.run(
        [promtool, "test", "rules", "rules_test.yml"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_every_service(stack: Stack) -> None:
    deadline = time.monotonic() + 60
    while True:
        targets = ask(stack, "targets")["data"]["activeTargets"]
        health = {target["labels"]["service"]: target["health"] for target in targets}
        if set(health.values()) == {"up"}:
            break
        assert time.monotonic() < deadline, targets
        time.sleep(0.2)
    assert set(health) == {"gateway", "deployer", "tunnel"}
    ports = {
        target["labels"]["service"]: int(target["scrapeUrl"].split(":")[2].split("/")[0])
        for target in targets
    }
    offset = stack.options.port_offset
    assert ports == {"gateway": 8400 + offset, "deployer": 8410 + offset, "tunnel": 8405 + offset}
    assert {rule["name"] for group in ask(stack, "rules")["data"]["groups"] for rule in group["rules"]} >= {
        "IsthmusServiceDown",
        "IsthmusServiceFaults",
    }


def test_every_panel_asks_what_prometheus_understands(stack: Stack) -> None:
    expressions = [
        (panel["title"], target["expr"])
        for path in DASHBOARDS
        for panel in json.loads(path.read_text("utf-8"))["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(expressions) > 10
    answers = {title: ask(stack, "query", query=expression) for title, expression in expressions}
    assert {title: answer for title, answer in answers.items() if answer["status"] != "success"} == {}


def test_prometheus_pages_are_there(stack: Stack) -> None:
    # The first page sends the browser on to the one of this build's user interface.
    url = f"http://127.0.0.1:{topology.PROMETHEUS + stack.options.port_offset}/"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.status == 200
        assert b"Prometheus" in answer.read()


def test_a_second_start_leaves_prometheus_alone(stack: Stack) -> None:
    before = stack.pid("prometheus")
    stack.up()
    assert stack.pid("prometheus") == before


GRAFANA = """#!{python}
import http.server, json, os, sys
with open(os.path.join(os.environ["GF_PATHS_DATA"], "started.json"), "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, file)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
address = (os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"]))
http.server.HTTPServer(address, Handler).serve_forever()
"""


def test_grafana_is_started_where_it_is_found(
    fake_services: None, offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "bin" / "grafana-server"
    binary.parent.mkdir()
    binary.write_text(GRAFANA.format(python=sys.executable))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    with Stack(tmp_path / "home", offset, without=["prometheus", *COMPUTE]) as stack:
        assert [process.name for process in stack.up()] == ["deployer", "tunnel", "gateway", "grafana"]
        assert [row.health for row in stack.status()] == [""] * 4
        started = json.loads((stack.layout.data_dir("grafana") / "started.json").read_text())
    assert started["arguments"][0] == "--homepath"
    # Each variable that the provisioning files refer to is set.
    provisioning = Path(started["environment"]["GF_PATHS_PROVISIONING"])
    names = {
        name
        for path in provisioning.rglob("*.yml")
        for name in re.findall(r"\$\{(\w+)\}", path.read_text("utf-8"))
    }
    assert names == {"ISTHMUS_PROMETHEUS_URL", "ISTHMUS_DASHBOARDS"}
    assert names <= set(started["environment"])
    assert list(Path(started["environment"]["ISTHMUS_DASHBOARDS"]).glob("*.json")) == DASHBOARDS


def test_a_machine_without_grafana_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    stack = Stack(tmp_path / "home", without=["prometheus", *COMPUTE])
    stack.layout.make()
    assert [process.name for process in stack.processes()] == ["deployer", "tunnel", "gateway"]
    assert stack.notes == [
        "grafana isn't part of this stack: no grafana-server on PATH; its dashboards are in deploy/grafana"
    ]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_laid_out_without_overlap(path: Path) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    datasource = (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text("utf-8")
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"]
            assert f"uid: {panel['datasource']['uid']}" in datasource


def test_targets_are_replaced_whole(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    processes = topology.services(layout, Options(), {})
    first = monitoring.write_prometheus(layout, processes)
    moved = topology.services(layout, Options(port_offset=7), {})
    # What Prometheus reads at its start is the same; targets it watches.
    assert monitoring.write_prometheus(layout, moved) == first
    written = json.loads((layout.data_dir("prometheus") / "targets" / "stack.json").read_text())
    assert written == monitoring.targets(moved)
    assert [group["targets"] for group in written] == [
        ["127.0.0.1:8417"],
        ["127.0.0.1:8412"],
        ["127.0.0.1:8427"],
        ["127.0.0.1:8437"],
        ["127.0.0.1:8438"],
        ["127.0.0.1:8457"],
        ["127.0.0.1:8447"],
        ["127.0.0.1:8467"],
        ["127.0.0.1:8407"],
    ]
