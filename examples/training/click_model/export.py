"""Writes the models as ONNX, whole: their tables of films and what is known of them are in the files."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from .log import RANKER_WINDOW, WINDOW  # noqa: TID252 (the folder is also a package of its own, in a job)
from .network import ClickModel, ClickNetwork  # noqa: TID252
from .ranker import Ranker  # noqa: TID252

OPSET = 17
_NAMES = ("item", "history", "ratings")


def export(network: ClickNetwork, path: Path) -> None:
    """Write inputs item, history, ratings and the output click; the first dimension of each is "batch"."""
    two = (
        torch.ones(2, dtype=torch.int64),
        torch.zeros(2, WINDOW, dtype=torch.int64),
        torch.zeros(2, WINDOW, dtype=torch.float32),
    )
    _export(ClickModel(network), two, path)


def export_ranker(ranker: Ranker, path: Path) -> None:
    """Write inputs item and history, 16 bits each, and ratings, 8 bits; the rest is as in `export`."""
    two = (
        torch.ones(2, dtype=torch.int16),
        torch.zeros(2, RANKER_WINDOW, dtype=torch.int16),
        torch.zeros(2, RANKER_WINDOW, dtype=torch.uint8),
    )
    _export(ranker, two, path)
    # torch exports no unsigned 16 bits; what follows the inputs are casts, which take them as well.
    model = onnx.load(path)
    for given in model.graph.input:
        if given.type.tensor_type.elem_type == onnx.TensorProto.INT16:
            given.type.tensor_type.elem_type = onnx.TensorProto.UINT16
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _export(model: nn.Module, two: tuple[Tensor, ...], path: Path) -> None:
    with warnings.catch_warnings():
        # The exporter that needs nothing but torch and onnx is the older one, and says so.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            two,
            str(path),
            input_names=list(_NAMES),
            output_names=["click"],
            dynamic_axes={name: {0: "batch"} for name in (*_NAMES, "click")},
            opset_version=OPSET,
            dynamo=False,
        )
