"""Data in files beside the model: what is read of them, and what isn't."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from libs.common.errors import Invalid
from services.engine.reading import read_model
from services.engine.testing import small

WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


def external(**fields: str) -> bytes:
    model: ModelProto = small()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=value)
    return model.SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "w.bin").write_bytes(b"headless" + WEIGHTS.tobytes() + b"tail")
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "link").symlink_to("w.bin")
    (tmp_path / "links").symlink_to("deep")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


SHA1 = hashlib.sha1(WEIGHTS.tobytes(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    "fields",
    [
        {"location": "w.bin"},
        {"location": "w.bin", "offset": "0", "length": "24", "checksum": SHA1},
        {"location": "deep/er/w.bin", "offset": "8", "length": "24"},
    ],
)
def test_files_in_the_folder_are_read(folder: Path, fields: dict[str, str]) -> None:
    found = read_model(external(**fields), folder=folder).constants["w"]
    np.testing.assert_array_equal(found, WEIGHTS)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("no file in the model's folder", {"location": "/etc/passwd"}),
        ("no file in the model's folder", {"location": "deep/../../w.bin"}),
        ("no file in the model's folder", {"location": "deep//w.bin"}),
        ("no file in the model's folder", {"location": "deep\\w.bin"}),
        ("no file in the model's folder", {"location": "C:/w.bin"}),
        ("no file in the model's folder", {"location": ""}),
        ("no file in the model's folder", {"location": "x" * 5000}),
        ("can't be opened .*No such file", {"location": "v.bin"}),
        ("can't be opened .*links aren't followed", {"location": "link"}),
        ("can't be opened .*links aren't followed", {"location": "links/er/w.bin"}),
        ("'pipe' is no ordinary file", {"location": "pipe"}),
        ("'deep' is no ordinary file", {"location": "deep"}),
        ("takes 24 bytes, but 36 bytes of", {"location": "deep/er/w.bin"}),
        (
            "is at bytes 8 to 32 of 'w.bin', which has 24",
            {"location": "w.bin", "offset": "8", "length": "24"},
        ),
        ("takes 24 bytes, but 16 bytes", {"location": "w.bin", "offset": "8"}),
        ("offset of its data is '-8', not a number", {"location": "w.bin", "offset": "-8"}),
        ("length of its data is '٢٤'", {"location": "w.bin", "length": "٢٤"}),
        ("its checksum isn't", {"location": "w.bin", "checksum": "0" * 40}),
    ],
)
def test_what_is_elsewhere_or_damaged_is_refused(folder: Path, text: str, fields: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=f"constant 'w'.*{text}"):
        read_model(external(**fields), folder=folder)
