"""The files that Prometheus and Grafana read, written for the ports of one stack."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from deploy.local.layout import ROOT, Layout
from deploy.local.topology import HOST, Process

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"


def targets(processes: Iterable[Process]) -> list[dict[str, object]]:
    """Return what Prometheus scrapes: each process' metrics port, labelled with its name."""
    return [
        {"targets": [f"{HOST}:{endpoint.port}"], "labels": {"service": process.name}}
        for process in processes
        for endpoint in process.endpoints
        if endpoint.what == "metrics"
    ]


def _digest(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def write_prometheus(layout: Layout, processes: Iterable[Process]) -> str:
    """Lay out Prometheus' folder for these processes and return a digest of its configuration."""
    folder = layout.data_dir("prometheus")
    (folder / "targets").mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("prometheus.yml", "rules.yml"):
        shutil.copyfile(PROMETHEUS / name, folder / name)
    # Prometheus watches this one: a moved port takes no restart.
    text = json.dumps(targets(processes), indent=2) + "\n"
    fresh = folder / "targets" / ".stack.json.new"
    fresh.write_text(text, "utf-8")
    fresh.rename(folder / "targets" / "stack.json")
    return _digest(PROMETHEUS)


def write_grafana(layout: Layout) -> str:
    """Make Grafana's folders and return a digest of what it is provisioned with."""
    for name in ("log", "plugins"):
        (layout.data_dir("grafana") / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    return _digest(GRAFANA)
