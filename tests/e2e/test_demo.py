"""The README's main job, whole: a stack of its own, agents as processes, a good and a bad release."""

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.layout import ROOT

DEADLINE_S = 400.0


@pytest.fixture
def home() -> Iterator[Path]:
    """Give a folder whose path is short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="isthmus-e2e-") as folder:
        yield Path(folder)


def demo(home: Path, port_offset: int, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Run the demo; return its exit code, what it found and what it said."""
    command = [sys.executable, "-m", "examples.demo", "--json", "--home", str(home)]
    command += ["--port-offset", str(port_offset), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.timeout(DEADLINE_S + 30)
def test_the_main_job_on_real_data(home: Path, unused_port_offset: int) -> None:
    code, found, said = demo(home, unused_port_offset, "--replay-s", "5", "--epochs", "1")
    assert code == 0, said
    assert found["good"] is True
    assert len(found["checks"]) >= 13
    auc = found["auc"]
    assert auc["whole test part"]["events"] == 20_001
    assert auc["whole test part"]["model"] > auc["whole test part"]["ftrl_prequential"]
    assert 0.72 < auc["whole test part"]["ftrl_prequential"] < 0.74
    assert auc["seen by devices"]["events"] == found["figures"]["results"]
    assert "epoch 1 of 1: training loss" in said
    figures = found["figures"]
    assert figures["devices"] == 8
    assert figures["events"] > figures["events_synthetic"] > 0
    assert figures["results"] > 0
    assert figures["frames_sent"] > 0
    assert 0 < figures["sent_bytes"] < figures["raw_event_bytes"]
    assert "rolled_back" in said
    assert "marked so; the ratings are real" in found["notes"][0]


@pytest.mark.timeout(DEADLINE_S + 30)
def test_anybodys_event_log(home: Path, unused_port_offset: int) -> None:
    log = home / "shop.csv"
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "type", "time", "page", "colour", "price"])
        for number in range(3000):
            user = f"u{number % 12}"
            kind = "view" if number % 3 else "buy"
            rows.writerow(
                [user, kind, 1_700_000_000 + number, "shop", ("red", "blue", "green")[number % 3], number]
            )
    code, found, said = demo(
        home, unused_port_offset, "--data", str(log), "--devices", "4", "--replay-s", "2"
    )
    assert code == 0, said
    (started,) = (line for line in said.splitlines() if line.startswith("starting "))
    assert "gateway" in started
    assert not {"etcd", "engine", "scheduler", "runner"} & set(started.replace(",", "").split())
    assert found["title"].startswith("shop.csv: 3,000 events of 12 users")
    assert found["figures"]["events_synthetic"] == 0
    assert found["figures"]["results"] > 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("user,kind,time\na,b,1\n", "'type' is missing"),
        ("user,type,time\na,b,yesterday\n", "line 2: time: 'yesterday'"),
        ("user,type,time\n", "no events"),
    ],
)
def test_a_broken_log_is_explained_before_anything_starts(home: Path, text: str, what: str) -> None:
    log = home / "log.csv"
    log.write_text(text)
    code, _, said = demo(home / "stack", 0, "--data", str(log))
    assert code == 1
    assert what in said
    assert not (home / "stack").exists()


def test_a_log_that_is_too_short_is_refused_before_anything_starts(home: Path) -> None:
    log = home / "log.csv"
    log.write_text("user,type,time,colour\n" + "".join(f"u{n % 8},view,{n},red\n" for n in range(80)))
    code, _, said = demo(home / "stack", 0, "--data", str(log))
    assert code == 1
    assert "gets 10 events and needs 120" in said
    assert not (home / "stack").exists()
