"""The training program as a job runs it: in a folder of its own, by its command."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from deploy.local.layout import ROOT
from examples.training.click_model.log import read_items, read_shown
from tests.unit.examples.training.conftest import write_log

Files = tuple[Path, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_log(tmp_path)


def train(folder: Path, files: Files, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the program in `folder`, which gets nothing but its own source and the two files."""
    shutil.copytree(ROOT / "examples/training/click_model", folder / "click_model", dirs_exist_ok=True)
    for file in files:
        shutil.copy(file, folder)
    command = [sys.executable, "-m", "click_model", "ratings.csv", "items.csv", *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.timeout(330)
def test_it_learns_and_writes_what_it_learnt(tmp_path: Path, files: Files) -> None:
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        done = train(folder, files, "--epochs", "3")
        assert done.returncode == 0, done.stderr
        assert "epoch 3 of 3: training loss" in done.stdout
        found.append(folder)
    # The same seed gives the same bytes.
    assert (found[0] / "model.onnx").read_bytes() == (found[1] / "model.onnx").read_bytes()
    metrics = json.loads((found[0] / "metrics.json").read_text("utf-8"))
    assert (metrics["train_events"], metrics["test_events"]) == (1200, 300)
    # The log's rule is genre by user, which the history shows and user and film on their own don't.
    assert metrics["model"]["auc"] > 0.9
    session = onnxruntime.InferenceSession(str(found[0] / "model.onnx"), providers=["CPUExecutionProvider"])
    with (found[0] / "predictions.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    shown = read_shown(files[0], read_items(files[1]))
    assert [(row["user"], row["item"]) for row in predictions] == shown.names[1200:]
    assert [float(row["clicked"]) for row in predictions] == shown.clicked[1200:].tolist()
    for start, end in ((1200, 1201), (1201, 1204), (1204, 1500)):
        rows = slice(start, end)
        inputs = {"item": shown.item[rows], "history": shown.history[rows], "ratings": shown.ratings[rows]}
        (given,) = session.run(["click"], inputs)
        expected = [float(row["model"]) for row in predictions[start - 1200 : end - 1200]]
        assert given.shape == (end - start,)
        assert np.abs(given - np.array(expected)).max() < 1e-5
    assert json.loads((found[0] / "items.json").read_text("utf-8"))["index"]["7"] == 7


@pytest.mark.timeout(120)
def test_bad_files_end_it_with_a_line(tmp_path: Path, files: Files) -> None:
    files[0].write_text("user,item\n", "utf-8")
    (tmp_path / "job").mkdir()
    done = train(tmp_path / "job", files)
    assert done.returncode == 1
    assert done.stderr == "click_model: ratings.csv, line 1: the column 'rated_s' is missing\n"
