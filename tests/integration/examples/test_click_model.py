"""The training program as a job runs it: in a folder of its own, by its command."""

import csv
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from deploy.local.layout import ROOT
from examples.training.click_model.export import export_ranker
from examples.training.click_model.log import (
    MAX_ITEMS,
    RANKER_WINDOW,
    WINDOW,
    Shown,
    read_items,
    read_shown,
)
from examples.training.click_model.ranker import Ranker, RankerNetwork, half_stars
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


def small(shown: Shown, rows: slice) -> tuple[np.ndarray, ...]:
    """Return the ranker's inputs as they are sent."""
    history, ratings = shown.past(rows, RANKER_WINDOW)
    item = shown.item[rows].astype(np.uint16)
    return item, history.astype(np.uint16), half_stars(ratings).astype(np.uint8)


@pytest.mark.timeout(330)
def test_it_learns_and_writes_what_it_learnt(tmp_path: Path, files: Files) -> None:
    found = [tmp_path / "one", tmp_path / "two"]
    for folder in found:
        folder.mkdir()
    with ThreadPoolExecutor(len(found)) as threads:  # each a process of one thread
        runs = list(
            threads.map(lambda folder: train(folder, files, "--epochs", "3", "--ranker-epochs", "4"), found)
        )
    for done in runs:
        assert done.returncode == 0, done.stderr
        assert "epoch 3 of 3: training loss" in done.stdout
    # The same seed gives the same bytes.
    for model in ("model.onnx", "ranker.onnx"):
        assert (found[0] / model).read_bytes() == (found[1] / model).read_bytes()
    metrics = json.loads((found[0] / "metrics.json").read_text("utf-8"))
    assert (metrics["train_events"], metrics["test_events"]) == (1200, 300)
    # The log's rule is genre by user, which the history shows and user and film on their own don't.
    for name in ("model", "ranker", "cascade"):
        assert metrics[name]["auc"] > 0.9
    assert metrics["cascade_gain"]["auc"] == pytest.approx(
        metrics["cascade"]["auc"] - metrics["model"]["auc"]
    )
    with (found[0] / "predictions.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    shown = read_shown(files[0], read_items(files[1]))
    assert [(row["user"], row["item"]) for row in predictions] == shown.names[1200:]
    assert [float(row["clicked"]) for row in predictions] == shown.clicked[1200:].tolist()
    scored = {
        name: np.array([float(row[name]) for row in predictions])
        for name in ("model", "ranker", "cascade", "asked")
    }
    sessions = [
        onnxruntime.InferenceSession(str(found[0] / model), providers=["CPUExecutionProvider"])
        for model in ("model.onnx", "ranker.onnx")
    ]
    for start, end in ((1200, 1201), (1201, 1204), (1204, 1500)):
        rows = slice(start, end)
        for session, name, inputs in (
            (sessions[0], "model", (shown.item[rows], *shown.past(rows, WINDOW))),
            (sessions[1], "ranker", small(shown, rows)),
        ):
            (given,) = session.run(["click"], dict(zip(("item", "history", "ratings"), inputs, strict=True)))
            assert given.shape == (end - start,)
            assert np.abs(given - scored[name][start - 1200 : end - 1200]).max() < 1e-5
    # What is written of the cascade is what devices do by what is written of the policy.
    policy = json.loads((found[0] / "cascade.json").read_text("utf-8"))
    past_count = shown.past_count(slice(1200, None), RANKER_WINDOW)
    asked = (scored["model"] >= policy["low"]) & (scored["model"] <= policy["high"])
    asked &= past_count >= policy["least_past"]
    assert 0 < asked.sum() < len(asked)
    assert np.array_equal(scored["asked"] == 1.0, asked)
    assert np.array_equal(scored["cascade"], np.where(asked, scored["ranker"], scored["model"]))
    assert metrics["cascade_sent_share"] == pytest.approx(asked.mean())
    sent = small(shown, slice(1200, 1201))
    assert sum(each.nbytes for each in sent) == metrics["cascade_request_bytes"]
    assert policy["window"] == RANKER_WINDOW
    assert json.loads((found[0] / "items.json").read_text("utf-8"))["index"]["7"] == 7


def test_the_ranker_takes_films_by_all_numbers_of_16_bits(tmp_path: Path) -> None:
    torch.manual_seed(4)
    ranker = Ranker([RankerNetwork(np.zeros((MAX_ITEMS + 1, 2), np.float32))]).eval()
    export_ranker(ranker, tmp_path / "ranker.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "ranker.onnx", providers=["CPUExecutionProvider"])
    item = np.array([1, 2**15 - 1, 2**15, MAX_ITEMS], np.uint16)
    history, halves = np.zeros((2, 4, RANKER_WINDOW), np.uint16)
    history[:, :2] = [[1, 2**15]] * 3 + [[MAX_ITEMS, 1]]
    halves[:, :2] = [10, 1]
    halves = halves.astype(np.uint8)
    (given,) = session.run(["click"], {"item": item, "history": history, "ratings": halves})
    with torch.no_grad():
        wanted = ranker(*(torch.from_numpy(each.astype(np.int64)) for each in (item, history, halves)))
    assert wanted.std() > 0
    assert given == pytest.approx(wanted.numpy(), abs=1e-5)


@pytest.mark.timeout(120)
def test_bad_files_end_it_with_a_line(tmp_path: Path, files: Files) -> None:
    files[0].write_text("user,item\n", "utf-8")
    (tmp_path / "job").mkdir()
    done = train(tmp_path / "job", files)
    assert done.returncode == 1
    assert done.stderr == "click_model: ratings.csv, line 1: the column 'rated_s' is missing\n"
