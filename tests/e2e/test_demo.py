"""The README's main job, whole: a stack of its own, agents as processes, good, broken and bad versions."""

import contextlib
import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.layout import ROOT
from deploy.local.stack import Stack

DEADLINE_S = 500.0


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
    code, found, said = demo(home, unused_port_offset, "--quick")
    assert code == 0, said
    assert found["good"] is True
    assert len(found["checks"]) >= 19
    assert all(check["detail"] for check in found["checks"])
    auc = found["auc"]
    assert auc["whole test part"]["events"] == 4794
    # One pass over a few users: FTRL has no chance in it, and the models have learnt hardly more.
    assert auc["whole test part"]["ftrl_prequential"] == pytest.approx(0.7, abs=0.005)
    assert 0.6 < auc["whole test part"]["device"] < 0.75
    assert 0.6 < auc["whole test part"]["cloud"] < 0.75
    assert auc["seen by devices"]["events"] == found["figures"]["results"]
    assert "epoch 1 of 1: training loss" in said
    figures = found["figures"]
    assert figures["devices"] == 4
    assert figures["events"] > figures["events_synthetic"] > 0
    assert figures["results"] > figures["answered"] > 0
    assert figures["answered"] == figures["answers"] <= figures["requests"] <= figures["asked"]
    assert figures["frames_sent"] > 0
    assert figures["request_bytes"] == 602 * figures["requests"]
    assert 0 < figures["sent_bytes"] < figures["raw_event_bytes"]
    assert figures["tuning_trials"] == 1
    cascade = found["cascade"]["seen by devices"]
    assert cascade["bytes_up_a_request_bytes"] == 602
    assert cascade["device_run_p99_ms"] >= cascade["device_run_p50_ms"] > 0
    for text in ("refused: click@1.1.0 failed its pre-flight", "click@1.2.0  ROLLED_BACK", "best so far"):
        assert text in said
    assert "marked so; the ratings are real" in found["notes"][0]


def test_the_view_of_a_terminal_ends_with_all_steps_done(home: Path, unused_port_offset: int) -> None:
    log = home / "log.csv"
    log.write_text(
        "user,type,time,colour\n" + "".join(f"u{n % 8},view,{n},red\n" for n in range(2400)), "utf-8"
    )
    command = [sys.executable, "-m", "examples.demo", "--data", str(log), "--devices", "4"]
    command += ["--replay-s", "1", "--home", str(home), "--port-offset", str(unused_port_offset)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"},
    ) as process:
        os.close(theirs)
        screen = b""
        # A pseudo-terminal ends with an error.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                screen += piece
        os.close(ours)
        assert process.stdout is not None
        table = process.stdout.read()
    assert process.returncode == 0, screen.decode()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode().split("tenant, keys and devices")[-1])
    assert last.count("✓") == 6
    assert "results" in last
    assert "a plainly broken version isn't published" in table


@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.parametrize("said", ["starting ", "agents enrolled"])
def test_a_demo_that_is_ended_leaves_nothing_behind(home: Path, unused_port_offset: int, said: str) -> None:
    log, scratch = home / "log.csv", home / "t"
    scratch.mkdir()
    log.write_text("user,type,time,colour\n" + "".join(f"u{n % 8},view,{n},red\n" for n in range(2400)))
    command = [sys.executable, "-m", "examples.demo", "--data", str(log), "--devices", "4"]
    command += ["--home", str(home / "s"), "--port-offset", str(unused_port_offset)]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if said in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait() == 130, lines
    assert lines[-1] == "demo: interrupted; what it started has been taken down\n"
    assert list(scratch.iterdir()) == []
    assert not Stack(home / "s", unused_port_offset).running()
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if str(home) in command] == []


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
    assert not {"etcd", "engine", "scheduler", "runner", "serving", "tuner"} & set(
        started.replace(",", "").split()
    )
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
