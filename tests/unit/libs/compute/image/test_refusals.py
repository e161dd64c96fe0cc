"""What image functions don't take, they refuse with a text that names function, argument and value."""

from __future__ import annotations

import inspect
import io
import re
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from libs.common.errors import Exhausted, Invalid
from libs.compute import image
from libs.compute.image import catalogue
from libs.compute.image.samples import Case, cases

GRAY = np.zeros((6, 8), np.uint8)
BGR = np.zeros((6, 8, 3), np.uint8)
REAL = np.zeros((6, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: image.resize("text", (4, 4)), "resize: src can't be read"),
        (lambda: image.resize(np.zeros(5), (4, 4)), r"src is float64\[5\]; an image is \[height, width"),
        (lambda: image.resize(np.zeros((0, 4)), (4, 4)), "an image without pixels"),
        (lambda: image.resize(GRAY.astype("int64"), (4, 4)), "takes elements of uint8, uint16.*astype"),
        (lambda: image.resize(GRAY, (4, 0)), "the result would be 4 by 0"),
        (lambda: image.resize(GRAY, None), "give dsize, or fx and fy above 0"),
        (lambda: image.resize(GRAY, (1 << 20, 1 << 20)), "the result would be"),
        (lambda: image.resize(GRAY, (4, 4), interpolation=9), "interpolation is 9; it is one of"),
        (lambda: image.cvtColor(GRAY, image.COLOR_BGR2GRAY), "takes 3 channels"),
        (lambda: image.cvtColor(BGR, 5000), "code is 5000"),
        (lambda: image.cvtColor(BGR.astype("uint16"), image.COLOR_BGR2HSV), "uint8, float32"),
        (lambda: image.cvtColor(BGR, image.COLOR_BGR2YCrCb, 4), "dstCn is 4"),
        (lambda: image.cvtColor(GRAY[:5], image.COLOR_YUV2BGR_NV12), "of even sizes"),
        (lambda: image.GaussianBlur(GRAY, (4, 4), 0), "ksize is 4; it is odd"),
        (lambda: image.GaussianBlur(GRAY, (0, 0), 0), "unless its sigma"),
        (lambda: image.GaussianBlur(GRAY, (3, 3), float("nan")), "must be finite"),
        (lambda: image.blur(GRAY, (3, 3), borderType=image.BORDER_WRAP), "borderType is 3"),
        (lambda: image.blur(GRAY, (3, 3), (3, 0)), "outside of the kernel"),
        (lambda: image.medianBlur(REAL, 7), "ksize is 7"),
        (lambda: image.filter2D(GRAY, -1, np.ones((100, 100))), "at most 4096"),
        (lambda: image.filter2D(GRAY, 99, np.ones((3, 3))), "ddepth is 99; it is -1 or one of 0 .uint8."),
        (lambda: image.Sobel(GRAY, -1, 0, 0), "a derivative has an order"),
        (lambda: image.Sobel(GRAY, -1, 3, 0), "takes a larger ksize"),
        (lambda: image.add(GRAY, BGR), "their shapes must be equal"),
        (lambda: image.add(GRAY, REAL), "say the result's type by dtype"),
        (lambda: image.add(BGR, (1, 2)), "2 numbers; there are 3 channels"),
        (lambda: image.add(GRAY, GRAY, np.zeros((2, 2), np.uint8)), r"mask is uint8\[2, 2\]"),
        (lambda: image.merge([]), "mv is a list of 1 to"),
        (lambda: image.hconcat([GRAY, GRAY[:3]]), r"src\[1\] is uint8\[3, 8\]"),
        (lambda: image.extractChannel(BGR, 3), "coi is 3; it is an integer from 0 to 2"),
        (lambda: image.LUT(GRAY, np.zeros(3, np.uint8)), "it has 256 entries"),
        (lambda: image.warpAffine(GRAY, np.eye(3), (4, 4)), r"it is a matrix \[2, 3\]"),
        (lambda: image.warpAffine(GRAY, np.eye(3)[:2], (4, 4), 77), "flags is 77"),
        (lambda: image.getAffineTransform([[0, 0], [1, 1], [2, 2]], [[0, 0], [1, 0], [0, 1]]), "one line"),
        (lambda: image.threshold(BGR, 0, 255, image.THRESH_OTSU), "a search takes one channel"),
        (lambda: image.adaptiveThreshold(GRAY, 255, 0, 0, 4, 0), "blockSize is 4; it is odd"),
        (lambda: image.matchTemplate(GRAY, np.zeros((9, 9), np.uint8), 0), "larger than image"),
        (lambda: image.calcHist([GRAY], [1], None, [8], [0, 256]), "channels is 1"),
        (lambda: image.calcHist([GRAY], [0], None, [8], [9, 3]), "a lower and a higher end"),
        (lambda: image.calcHist(GRAY, [0], None, [8], [0, 256]), "it is a list"),
        (lambda: image.minMaxLoc(BGR), "takes 1 channels"),
        (lambda: image.NMSBoxes([[1, 2, 3]], [0.5], 0, 0), r"they are \[n, 4\] and \[n\]"),
        (
            lambda: image.blobFromImage(GRAY, ddepth=image.CV_8U, scalefactor=2),
            "no mean and a scalefactor of 1",
        ),
        (lambda: image.blobFromImages([GRAY, BGR]), "images differ in size or channels"),
        (
            lambda: image.NMSBoxes(np.zeros((2, 4)), np.zeros(3), 0, 0),
            r"^NMSBoxes: bboxes is float64",
        ),
        (lambda: image.PSNR(GRAY, REAL), "^PSNR: src2 is float32"),
        (lambda: image.PSNR(GRAY, 4), "^PSNR: src2 is int64"),
        (lambda: image.Laplacian(GRAY, 99), "^Laplacian: ddepth is 99"),
        (lambda: image.scaleAdd(GRAY, 1, REAL), "^scaleAdd: src1 is uint8 and src2 float32"),
        (lambda: image.blobFromImage(None), "^blobFromImage: image can't be read"),
        (lambda: image.buildPyramid(GRAY, 0, 99), "^buildPyramid: borderType is 99"),
        (lambda: image.calcBackProject([GRAY], [0], "text", [0, 256], 1), "^calcBackProject: hist can't be"),
        (lambda: image.getGaborKernel((0, 0), 1e9, 0, 1, 1), "^getGaborKernel: sigma is 1000000000.0"),
        (lambda: image.transform(GRAY, np.zeros((0, 1))), r"^transform: m has shape \[0, 1\]"),
        (lambda: image.line(GRAY, (0.5, 1), (2, 3), 1), "points are integers"),
        (lambda: image.line(GRAY, (0, 1), (2, 3), 1, 0), "thickness is 0"),
        (lambda: image.circle(GRAY, (1, 2), -1, 1), "radius is -1"),
        (lambda: image.fillPoly(GRAY, [[[1, 2, 3]]], 1), r"points are integers \(x, y\)"),
        (lambda: image.Canny(GRAY, 1, 2, 4), "apertureSize is 4"),
        (lambda: image.Canny(GRAY, 1, 2, 3, "yes"), "L2gradient is 'yes'; it is True or False"),
        (lambda: image.distanceTransform(GRAY, image.DIST_L2, image.DIST_MASK_5), "maskSize is 5"),
        (lambda: image.imdecode(b"no image", image.IMREAD_COLOR), "^imdecode: buf: .* none of BMP, JPEG"),
        (lambda: image.imdecode(b"", image.IMREAD_COLOR), "0 bytes"),
        (lambda: image.imdecode([[1, 2]], image.IMREAD_COLOR), "uint8"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()


def _array(random: np.random.Generator) -> np.ndarray[Any, Any]:
    shapes = [
        (5, 6),
        (5, 6, 3),
        (5, 6, 1),
        (5, 6, 4),
        (1, 1),
        (0, 3),
        (3, 0, 3),
        (7,),
        (),
        (2, 2, 2, 2),
        (4, 2),
    ]
    types = ["uint8"] * 4 + [
        "int8",
        "uint16",
        "int16",
        "int32",
        "float32",
        "float64",
        "bool",
        "int64",
        "float16",
    ]
    numbers = np.asarray(random.normal(size=shapes[random.integers(len(shapes))]) * 60)
    dtype = np.dtype(types[random.integers(len(types))])
    return (numbers if dtype.kind == "f" else np.abs(numbers)).astype(dtype)


def _thing(random: np.random.Generator, name: str) -> Any:
    if (
        name in ("src", "image", "img", "src1", "src2", "x", "y", "m", "map1", "map2")
        and random.random() < 0.7
    ):
        return _array(random)
    if name in ("images", "mv", "pts") and random.random() < 0.7:
        return [_array(random) for _ in range(2)]
    if name in ("ksize", "dsize", "size", "patchSize", "pt1", "pt2", "center") and random.random() < 0.7:
        return tuple(random.integers(0, 9, 2).tolist())
    made = (
        lambda: int(random.integers(-3, 140)),
        lambda: int(random.integers(-3, 9)),
        lambda: float(random.normal() * 5),
        lambda: tuple(random.integers(-2, 12, 2).tolist()),
        lambda: tuple(random.normal(size=3).tolist()),
        lambda: random.normal(size=(3, 3)).tolist(),
        lambda: None,
        lambda: "text",
        lambda: _array(random),
        lambda: [_array(random)],
        lambda: True,
    )
    return made[random.integers(len(made))]()


def _png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(BGR).save(file, "PNG")
    return file.getvalue()


CASES = {**cases(), "imdecode": [Case("imdecode", (_png(), image.IMREAD_COLOR))]}


def _call(name: str, arguments: Mapping[str, Any]) -> Any:
    """Call a function by its parameters' names; an equaliser is used at once on the image beside them."""
    given = dict(arguments)
    pixels = given.pop("src", None) if name == "createCLAHE" else None
    made = getattr(image, name)(**given)
    return made.apply(pixels) if name == "createCLAHE" else made


def _named(case: Case) -> dict[str, Any]:
    """Return the arguments of a call by their parameters' names."""
    parameters = list(inspect.signature(getattr(image, case.name)).parameters)
    if case.name == "createCLAHE":
        parameters.insert(0, "src")
    return {**dict(zip(parameters, case.args, strict=False)), **case.options}


def _refusal(name: str, arguments: Mapping[str, Any]) -> str:
    """Return how a call is refused; "" where it gives a result. Anything else that it raises is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            _call(name, arguments)
        except (Invalid, Exhausted) as refusal:
            return str(refusal)
    return ""


def _assert_named(name: str, text: str) -> None:
    """Assert that a refusal names the function that was called, and an argument of it."""
    owners, arguments = [name], set(inspect.signature(getattr(image, name)).parameters)
    if name == "createCLAHE":
        owners, arguments = [name, "CLAHE.apply"], arguments | {"src"}
    assert text.startswith(tuple(f"{owner}: " for owner in owners))
    assert arguments & set(re.findall(r"\w+", text.partition(": ")[2])), text
    assert "object at 0x" not in text


@pytest.mark.parametrize("name", catalogue.functions())
def test_anything_gives_a_result_or_a_refusal(name: str) -> None:
    parameters = inspect.signature(getattr(image, name)).parameters.values()
    random = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(60):
        arguments = {
            each.name: _thing(random, each.name)
            for each in parameters
            if each.default is each.empty or random.random() < 0.2
        }
        if text := _refusal(name, arguments):
            _assert_named(name, text)


@pytest.mark.parametrize("name", catalogue.functions())
def test_a_call_with_one_argument_spoilt_gives_a_result_or_a_refusal(name: str) -> None:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    found = []
    for number in range(40):
        one, other = (_named(CASES[name][random.integers(len(CASES[name]))]) for _ in range(2))
        spoilt = list(one)[number % len(one)]
        # That of another call may go with the rest, or not.
        new = other[spoilt] if spoilt in other and random.random() < 0.3 else _thing(random, spoilt)
        text = _refusal(name, {**one, spoilt: new})
        found.append(text)
        if text:
            _assert_named(name, text)
    assert any(found)
    assert not all(found)
