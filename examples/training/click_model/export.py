"""Writes the model as ONNX, whole: its tables of films and what is known of them are in the file."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from .log import WINDOW  # noqa: TID252 (the folder is also a package of its own, in a job)
from .network import ClickModel, ClickNetwork  # noqa: TID252

OPSET = 17


def export(network: ClickNetwork, path: Path) -> None:
    """Write inputs item, history, ratings and the output click; the first dimension of each is "batch"."""
    two = (
        torch.ones(2, dtype=torch.int64),
        torch.zeros(2, WINDOW, dtype=torch.int64),
        torch.zeros(2, WINDOW, dtype=torch.float32),
    )
    names = ["item", "history", "ratings"]
    with warnings.catch_warnings():
        # The exporter that needs nothing but torch and onnx is the older one, and says so.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            ClickModel(network).eval(),
            two,
            str(path),
            input_names=names,
            output_names=["click"],
            dynamic_axes={name: {0: "batch"} for name in [*names, "click"]},
            opset_version=OPSET,
            dynamo=False,
        )
