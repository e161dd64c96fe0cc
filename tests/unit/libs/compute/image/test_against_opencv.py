"""Every function against OpenCV's of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np
import pytest

from libs.compute import image
from libs.compute.image import catalogue
from libs.compute.image.samples import Case, cases

CASES = cases()
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def plain() -> None:
    """Let OpenCV compute itself: other libraries that it comes with round otherwise."""
    cv2.ipp.setUseIPP(False)
    cv2.setNumThreads(1)


def _listed(thing: Any) -> Any:
    """Return nested lists as the arrays that OpenCV takes."""
    if isinstance(thing, list) and thing and isinstance(thing[0], list):
        array = np.array(thing)
        return array.astype(np.int8 if (array < 0).any() else np.uint8) if array.dtype.kind == "i" else array
    return thing


def _matrix(thing: Any) -> Array:
    return np.array(thing, np.float64)


def _with_mask(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, mask=None, dtype=-1: function(x, _scalar(y), mask=mask, dtype=dtype)


def _scalar(thing: Any) -> Any:
    return np.array(thing, np.float64) if isinstance(thing, tuple) else thing


def _norm(x: Array, y: Any, kind: int = 4, mask: Any = None) -> float:
    return cv2.norm(x, y) if isinstance(y, int) else cv2.norm(x, y, kind, mask)


def _normalize(x: Array, alpha: float, beta: float, kind: int, dtype: int = -1, mask: Any = None) -> Any:
    return cv2.normalize(x, None if mask is None else x * 0, alpha, beta, kind, dtype=dtype, mask=mask)


def _drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x.copy(), *rest)


def _median(x: Array, size: int) -> Any:
    return cv2.medianBlur(x, size)


def _morphology(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Array, kernel: Any, anchor: Any = (-1, -1), **options: Any) -> Any:
        return function(x, _listed(kernel), anchor=anchor, **options)

    return call


def _nms(boxes: Array, scores: Array, *rest: Any) -> Array:
    found = cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), *rest)
    return np.asarray(found, np.int32).reshape(-1)


def _window(function: Callable[..., Any]) -> Callable[..., Any]:
    names = ("anchor", "normalize")

    def call(x: Array, ddepth: int, size: Any, *rest: Any, **options: Any) -> Any:
        return function(x, ddepth, size, **dict(zip(names, rest, strict=False)), **options)

    return call


def _kernel(x: Array, ddepth: int, kernel: Any, *rest: Any, **options: Any) -> Any:
    names = ("anchor", "delta")
    return cv2.filter2D(x, ddepth, np.array(kernel), **dict(zip(names, rest, strict=False)), **options)


def _derived(function: Callable[..., Any]) -> Callable[..., Any]:
    names = {
        "Sobel": ("dx", "dy", "ksize"),
        "Scharr": ("dx", "dy", "scale", "delta"),
        "Laplacian": ("ksize",),
    }

    def call(x: Array, ddepth: int, *rest: Any, **options: Any) -> Any:
        return function(x, ddepth, **dict(zip(names[function.__name__], rest, strict=False)), **options)

    return call


def _pyramid(x: Array, levels: int) -> list[Array]:
    made = [x]
    for _ in range(levels):
        made.append(cv2.pyrDown(made[-1]))
    return made


def _statistics(x: Array, connectivity: int) -> Any:
    return cv2.connectedComponentsWithStats(x, connectivity=connectivity)


THEIRS: Mapping[str, Callable[..., Any]] = {
    **{name: _with_mask(getattr(cv2, name)) for name in ("add", "subtract")},
    "absdiff": lambda x, y: cv2.absdiff(x, _scalar(y)),
    "bitwise_not": lambda x, mask=None: cv2.bitwise_not(x, mask=mask),
    **{
        name: (lambda function: lambda x, y, mask=None: function(x, y, mask=mask))(getattr(cv2, name))
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    **{
        name: (lambda f: lambda x, y, scale=1, dtype=-1: f(x, y, scale=scale, dtype=dtype))(
            getattr(cv2, name)
        )
        for name in ("multiply", "divide")
    },
    "convertScaleAbs": lambda x, alpha, beta: cv2.convertScaleAbs(x, alpha=alpha, beta=beta),
    **{
        name: (lambda function: lambda x, y, degrees: function(x, y, angleInDegrees=degrees))(
            getattr(cv2, name)
        )
        for name in ("phase", "cartToPolar", "polarToCart")
    },
    "copyTo": lambda x, mask, dst=None: cv2.copyTo(x, mask, None if dst is None else dst.copy()),
    "insertChannel": lambda x, y, number: cv2.insertChannel(x, y.copy(), number),
    "mixChannels": lambda x, y, pairs: cv2.mixChannels(x, [each.copy() for each in y], pairs),
    "merge": cv2.merge,
    "filter2D": _kernel,
    "sepFilter2D": lambda x, d, a, b, **options: cv2.sepFilter2D(x, d, np.array(a), np.array(b), **options),
    **{name: _window(getattr(cv2, name)) for name in ("boxFilter", "sqrBoxFilter")},
    **{name: _derived(getattr(cv2, name)) for name in ("Sobel", "Scharr", "Laplacian")},
    "getDerivKernels": lambda dx, dy, size, normal=False: cv2.getDerivKernels(dx, dy, size, normalize=normal),
    **{name: _morphology(getattr(cv2, name)) for name in ("erode", "dilate")},
    "morphologyEx": lambda x, operation, kernel: cv2.morphologyEx(x, operation, _listed(kernel)),
    "resize": lambda x, size, fx=0, fy=0, interpolation=1: cv2.resize(
        x, size, fx=fx, fy=fy, interpolation=interpolation
    ),
    "warpAffine": lambda x, m, size, flags=1, **options: cv2.warpAffine(
        x, _matrix(m), size, flags=flags, **options
    ),
    "warpPerspective": lambda x, m, size, flags=1, **options: cv2.warpPerspective(
        x, _matrix(m), size, flags=flags, **options
    ),
    "remap": lambda x, a, b, kind, border=0, value=0: cv2.remap(
        x, a, b, kind, borderMode=border, borderValue=value
    ),
    **{
        name: (lambda f: lambda a, b: f(np.array(a, np.float32), np.array(b, np.float32)))(getattr(cv2, name))
        for name in ("getAffineTransform", "getPerspectiveTransform")
    },
    "perspectiveTransform": lambda x, m: cv2.perspectiveTransform(x, _matrix(m)),
    "transform": lambda x, m: cv2.transform(x, _matrix(m)),
    "cvtColor": lambda x, code, count: cv2.cvtColor(x, code, dstCn=count),
    "mean": lambda x, mask: cv2.mean(x, mask=mask),
    "meanStdDev": lambda x, mask: cv2.meanStdDev(x, mask=mask),
    "minMaxLoc": lambda x, mask: cv2.minMaxLoc(x, mask=mask),
    "norm": _norm,
    "normalize": _normalize,
    "reduce": lambda x, axis, kind, dtype=-1: cv2.reduce(x, axis, kind, dtype=dtype),
    "createCLAHE": lambda x, limit, tiles: cv2.createCLAHE(limit, tiles).apply(x),
    "Canny": lambda x, low, high, size, square: cv2.Canny(x, low, high, apertureSize=size, L2gradient=square),
    "cornerMinEigenVal": lambda x, block, size: cv2.cornerMinEigenVal(x, block, ksize=size),
    "moments": lambda x, binary: [np.float64(each) for each in cv2.moments(x, binary).values()],
    "boundingRect": lambda x: [np.array(each, np.int32) for each in cv2.boundingRect(x)],
    "buildPyramid": _pyramid,
    "connectedComponents": lambda x, connectivity: cv2.connectedComponents(x, connectivity=connectivity),
    "connectedComponentsWithStats": _statistics,
    **{name: _drawn(getattr(cv2, name)) for name in ("line", "rectangle", "circle", "fillPoly", "polylines")},
    "blobFromImage": cv2.dnn.blobFromImage,
    "blobFromImages": cv2.dnn.blobFromImages,
    "NMSBoxes": _nms,
}


def _ours(case: Case) -> Any:
    if case.name == "createCLAHE":
        return image.createCLAHE(*case.args[1:]).apply(case.args[0])
    return getattr(image, case.name)(*case.args, **case.options)


def _parts(result: Any) -> list[Any]:
    if isinstance(result, Mapping):
        return list(result.values())
    # A pair of coordinates is one thing, several results are several.
    if isinstance(result, list | tuple) and not all(type(each) in (float, int) for each in result):
        return [part for each in result for part in _parts(each)]
    return [result]


def _same(case: Case, ours: Any, theirs: Any) -> None:
    one, other = np.asarray(ours), np.asarray(theirs)
    if isinstance(theirs, np.ndarray):
        assert one.dtype == other.dtype, f"{one.dtype}, not {other.dtype}"
    if one.ndim == 3 and one.shape[2] == 1 and other.ndim == 2:
        one = one[:, :, 0]  # OpenCV gives no axis of one channel
    assert one.shape == other.shape, f"shape {one.shape}, not {other.shape}"
    kind = one.dtype.kind
    # Bits of floats may be any NaN.
    with np.errstate(invalid="ignore"):
        one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(other)
    np.testing.assert_array_equal(one[~finite], other[~finite])
    largest = max(1.0, np.abs(other[finite]).max(initial=0)) if kind == "f" else 1.0
    away = np.abs(one[finite] - other[finite]) / largest
    assert away.max(initial=0) <= case.within, f"differs by {away.max()}"
    assert not away.size or (away > 0).mean() <= case.share, f"{(away > 0).mean():.1%} differ"


def _relabelled(ours: Any, theirs: Any) -> Any:
    """Return OpenCV's components with our numbers: the regions are the same, their order may not be."""
    labels, other = np.asarray(ours[1]), theirs[1]
    pairs = sorted(set(zip(labels.ravel().tolist(), other.ravel().tolist(), strict=True)))
    assert [one for one, _ in pairs] == list(range(theirs[0]))
    order = [number for _, number in pairs]
    return (theirs[0], labels.astype(np.int32), *(each[order] for each in theirs[2:]))


@pytest.mark.parametrize("name", CASES)
def test_results_are_opencvs(name: str) -> None:
    for number, case in enumerate(CASES[name]):
        with np.errstate(all="ignore"):
            theirs = THEIRS.get(name, getattr(cv2, name, None))(*case.args, **case.options)
        ours = _ours(case)
        if name.startswith("connectedComponents"):
            theirs = _relabelled(ours, theirs)
        left, right = _parts(ours), _parts(theirs)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            try:
                _same(case, one, other)
            except AssertionError as error:
                raise AssertionError(f"{name}, call {number}: {_said(case)}: {error}") from None


def _said(case: Case) -> str:
    words = [
        f"{each.dtype}{list(each.shape)}" if isinstance(each, np.ndarray) else repr(each)[:60]
        for each in case.args
    ]
    return f"({', '.join(words)}, {dict(case.options)})"


def test_every_function_has_a_call_but_the_one_that_reads_files() -> None:
    assert set(CASES) | {"imdecode"} == set(catalogue.functions())
