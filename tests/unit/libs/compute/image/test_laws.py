"""What must hold of image functions whatever the image, and what OpenCV leaves open."""

from __future__ import annotations

import inspect
import io
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from libs.compute import image
from libs.compute.image import catalogue

Array = np.ndarray[Any, Any]
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 12)
TYPES = ["uint8", "uint16", "int16", "float32"]


def pixels(seed: int, height: int, width: int, channels: int = 0, dtype: str = "uint8") -> Array:
    shape = (height, width, channels) if channels else (height, width)
    random = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return np.asarray(random.normal(size=shape) * 50, dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, int(limits.max) + 1, shape).astype(dtype)


def test_each_says_how_near_it_comes_to_opencv() -> None:
    assert [name for name in catalogue.functions() if not catalogue.agreement(name)] == []


NOT_BOUND = {"buildPyramid"}
"""What OpenCV has in C++ alone."""


def test_each_is_opencvs() -> None:
    missing = {name for name in catalogue.functions() if not (hasattr(cv2, name) or hasattr(cv2.dnn, name))}
    assert missing == NOT_BOUND


@pytest.mark.parametrize("name", [name for name in catalogue.functions() if name not in NOT_BOUND])
def test_arguments_have_opencvs_names(name: str) -> None:
    function = getattr(cv2, name, None) or getattr(cv2.dnn, name)
    said = str(function.__doc__)
    theirs = set(
        said.replace("[", " ").replace("]", " ").replace(",", " ").replace("(", " ").replace(")", " ").split()
    )
    ours = set(inspect.signature(getattr(image, name)).parameters)
    # OpenCV has two functions of the name norm.
    assert ours <= theirs | {"src2"}


@settings(max_examples=25, deadline=None)
@given(
    SEEDS, SIZES, SIZES, st.sampled_from([0, 1, 3]), st.sampled_from(["uint8", "uint16", "int16", "float32"])
)
def test_turning_round_and_back_changes_nothing(
    seed: int, height: int, width: int, channels: int, dtype: str
) -> None:
    x = pixels(seed, height, width, channels, dtype)
    for code in (-1, 0, 1):
        np.testing.assert_array_equal(image.flip(image.flip(x, code), code), x)
    clockwise = image.rotate(x, image.ROTATE_90_CLOCKWISE)
    np.testing.assert_array_equal(image.rotate(clockwise, image.ROTATE_90_COUNTERCLOCKWISE), x)
    np.testing.assert_array_equal(image.merge(image.split(x)), x.reshape(height, width, -1))
    np.testing.assert_array_equal(image.bitwise_not(image.bitwise_not(x)), x)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 255), SIZES, SIZES, st.integers(1, 9), st.integers(1, 9), st.integers(0, 4))
def test_what_is_even_stays_even(
    seed: int, height: int, width: int, rows: int, columns: int, kind: int
) -> None:
    level = seed % 256
    x = np.full((height, width), level, np.uint8)
    for made in (
        image.resize(x, (columns, rows), interpolation=kind),
        image.GaussianBlur(x, (2 * columns - 1, 2 * rows - 1), 0),
        image.blur(x, (columns, rows)),
        image.medianBlur(x, 3),
        image.erode(x, np.ones((rows, columns))),
        image.pyrUp(x),
        image.pyrDown(x),
    ):
        assert set(np.asarray(made).ravel().tolist()) == {level}


@settings(max_examples=25, deadline=None)
@given(SEEDS, SIZES, SIZES, st.integers(1, 5), st.integers(1, 5))
def test_eroding_is_dilating_of_the_opposite(
    seed: int, height: int, width: int, rows: int, columns: int
) -> None:
    x = pixels(seed, height, width)
    form = np.random.default_rng(seed).random((rows, columns)) < 0.6
    opposite = image.bitwise_not(image.dilate(image.bitwise_not(x), form.tolist()))
    np.testing.assert_array_equal(image.erode(x, form.tolist()), opposite)


@settings(max_examples=25, deadline=None)
@given(SEEDS, SIZES, SIZES)
def test_a_map_that_moves_nothing_changes_nothing(seed: int, height: int, width: int) -> None:
    x = pixels(seed, height, width, 3)
    for kind in (image.INTER_NEAREST, image.INTER_LINEAR, image.INTER_CUBIC, image.INTER_LANCZOS4):
        np.testing.assert_array_equal(image.warpAffine(x, [[1, 0, 0], [0, 1, 0]], (width, height), kind), x)
        np.testing.assert_array_equal(image.warpPerspective(x, np.eye(3), (width, height), kind), x)


@settings(max_examples=25, deadline=None)
@given(SEEDS, SIZES, SIZES)
def test_medians_of_floats_are_numpys(seed: int, height: int, width: int) -> None:
    x = pixels(seed, height, width, 0, "float32")
    around = np.pad(x, 2, "edge")
    windows = np.lib.stride_tricks.sliding_window_view(around, (5, 5))
    np.testing.assert_array_equal(image.medianBlur(x, 5), np.median(windows, axis=(2, 3)).astype(np.float32))


def test_a_map_that_cannot_be_undone_reads_one_place() -> None:
    x = pixels(1, 5, 6)
    np.testing.assert_array_equal(image.invertAffineTransform(np.zeros((2, 3))), np.zeros((2, 3)))
    assert set(np.asarray(image.warpAffine(x, np.zeros((2, 3)), (4, 4))).ravel().tolist()) == {int(x[0, 0])}


def test_far_places_are_outside() -> None:
    x = pixels(2, 5, 6)
    far = np.array([[1e30, -1e30, np.inf, 1.0]], np.float32)
    beyond = image.remap(x, far, np.ones_like(far), image.INTER_LINEAR, image.BORDER_CONSTANT, 7)
    assert np.asarray(beyond)[0, :3].tolist() == [7, 7, 7]
    assert np.asarray(beyond)[0, 3] == x[1, 1]


@pytest.mark.parametrize("width", [2, 3, 4, 5, 8])
def test_thick_strokes_differ_from_opencvs_along_their_edges_only(width: int) -> None:
    paper = np.zeros((60, 70), np.uint8)
    strokes = (
        ("line", ((12, 14), (55, 40))),
        ("line", ((50, 12), (20, 45))),
        ("rectangle", ((15, 12), (50, 44))),
        ("circle", ((34, 30), 17)),
    )
    around = np.ones((3, 3) if width < 8 else (5, 5), np.uint8)
    for name, args in strokes:
        ours = np.asarray(getattr(image, name)(paper, *args, 255, width))
        theirs = getattr(cv2, name)(paper.copy(), *args, 255, width)
        assert not (cv2.erode(theirs, around) > ours).any()
        assert not (ours > cv2.dilate(theirs, around)).any()
        assert ((ours != theirs).sum() / (theirs > 0).sum()) < 0.2


def test_where_nothing_is_everything_is_far() -> None:
    full = np.ones((3, 4), np.uint8)
    assert np.asarray(image.distanceTransform(full, image.DIST_L1)).min() > 1e30
    assert (
        np.asarray(image.distanceTransform(full, image.DIST_C, dstType=image.CV_8U)).tolist()
        == [[255] * 4] * 3
    )
    _, _, stats, centres = image.connectedComponentsWithStats(full)
    assert np.asarray(stats).tolist() == [[0, 0, 0, 0, 0], [0, 0, 4, 3, 12]]
    assert np.isnan(np.asarray(centres)[0]).all()
    assert np.asarray(image.findNonZero(full * 0)).shape == (0, 2)


def test_regions_that_wind_are_one() -> None:
    maze = np.zeros((21, 21), np.uint8)
    maze[::2] = 1
    maze[1::4, -1] = maze[3::4, 0] = 1
    count, labels = image.connectedComponents(maze, 4)
    assert int(count) == 2
    np.testing.assert_array_equal(labels, maze)


def encoded(array: Array, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def test_files_are_read() -> None:
    rgb = pixels(3, 7, 9, 3)
    data = encoded(rgb, "PNG")
    np.testing.assert_array_equal(image.imdecode(data, image.IMREAD_COLOR_RGB), rgb)
    np.testing.assert_array_equal(image.imdecode(data, image.IMREAD_COLOR), rgb[..., ::-1])
    theirs = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(image.imdecode(np.frombuffer(data, np.uint8), image.IMREAD_COLOR), theirs)
    gray = np.asarray(image.imdecode(data, image.IMREAD_GRAYSCALE)).astype(int)
    assert np.abs(gray - cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)).max() <= 1


def test_channels_of_one_stay_an_axis() -> None:
    x = pixels(4, 5, 6, 1)
    assert image.blur(x, (3, 3)).shape == (5, 6, 1)
    assert image.resize(x, (3, 4)).shape == (4, 3, 1)
