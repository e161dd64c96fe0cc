"""The dashboards: each panel says what it shows, in which unit; no two overlap."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import topology
from deploy.local.layout import ROOT, Layout, Options

GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = {
    path.stem: json.loads(path.read_text("utf-8")) for path in (GRAFANA / "dashboards").glob("*.json")
}
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['id']}-{panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
# Units of Grafana that the panels may use.
UNITS = {"short", "none", "s", "bytes", "Bps", "reqps", "ops", "percentunit", "bool", "cps", "percent", "wps"}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    uid = "isthmus-prometheus"
    assert panel["datasource"] == {"type": "prometheus", "uid": uid}
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == uid
        assert target["legendFormat"]
        # What a legend names is a label that the query leaves.
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            by = re.search(r"(?:sum|max|min) by \(([^)]*)\)", target["expr"])
            assert by is None or label in re.split(r",\s*", by.group(1)), target
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_no_two_panels_overlap(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_overview_has_a_part_for_every_service() -> None:
    rows = {panel["title"].lower() for panel in DASHBOARDS["overview"]["panels"] if panel["type"] == "row"}
    processes = topology.services(Layout(Path("/home")), Options(), {})
    # The runner is a part of the scheduler's, the simulator of the deployer's.
    assert {process.name for process in processes} - {"runner", "simulator"} <= rows


def test_grafana_is_provisioned_with_what_the_panels_ask() -> None:
    files = [GRAFANA / "provisioning" / "datasources" / "prometheus.yml"]
    files.append(ROOT / "deploy" / "compose" / "grafana" / "datasource.yml")
    for path in files:
        (source,) = yaml.safe_load(path.read_text("utf-8"))["datasources"]
        assert (source["uid"], source["type"]) == ("isthmus-prometheus", "prometheus")
