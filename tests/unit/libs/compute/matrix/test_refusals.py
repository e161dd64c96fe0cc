"""What functions don't take, they refuse; the commonest of them in their own names."""

from __future__ import annotations

import inspect
import re
import warnings
import zlib
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.compute import matrix
from libs.compute.matrix import catalogue
from libs.compute.samples import SAMPLES
from libs.compute.testing import Sample, found

ARRAY = np.zeros(3)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.linspace(0, 1, "x"), "linspace: num is 'x'; it is an integer"),
        (lambda: matrix.round(ARRAY, 1 << 70), "round: decimals is 1180"),
        (lambda: matrix.convolve(ARRAY, ARRAY, ARRAY), "convolve: mode is array"),
        (lambda: matrix.polyder(ARRAY, 1.5), "polyder: m is 1.5; it is an integer"),
        (lambda: matrix.trim_zeros(ARRAY, 5), "trim_zeros: trim is 5"),
        (lambda: matrix.linalg.cond(np.eye(2), ()), "cond: p is ()"),
        (lambda: matrix.linalg.norm(ARRAY, ()), "norm: ord is ()"),
        (lambda: matrix.fft.rfftfreq(5, 0), "rfftfreq: d is 0"),
        (lambda: matrix.fft.fft(ARRAY, norm="x"), "fft: norm is 'x'"),
        (lambda: matrix.sort(ARRAY, 7), "sort: axis 7 is out of range"),
        (lambda: matrix.mean(ARRAY, 7), "mean: axis 7 is out of range"),
        (lambda: matrix.interp(ARRAY, [0, 1], [0, 1, 2]), "interp: xp and fp have as many elements"),
        (lambda: matrix.dot(ARRAY, np.zeros(4)), "dot: axis 0 of a, of size 3, doesn't fit axis 0 of b"),
        (lambda: matrix.vdot(ARRAY, np.zeros(4)), "vdot: axis 0 of a, of size 3, doesn't fit axis 0 of b"),
        (lambda: matrix.sum(ARRAY, axis=5), "sum: axis 5 is out of range"),
        (lambda: matrix.prod(ARRAY, axis="x"), "prod: axis 'x' is no integer"),
        (lambda: matrix.max(ARRAY, axis=(0, -1)), "max: axes (0, -1) name one twice"),
        (lambda: matrix.choose([0, 7, 1], [ARRAY, ARRAY]), "choose: a holds 7; there are 2 choices"),
        (lambda: matrix.choose([0, -1, 1], [ARRAY, ARRAY]), "choose: a holds -1"),
        (lambda: matrix.choose([0], []), "choose: choices is a list"),
        (lambda: matrix.choose([0], 5), "choose: choices is a list"),
        (lambda: matrix.histogram(ARRAY, bins=0), "histogram: bins is 0"),
        (lambda: matrix.histogram_bin_edges(ARRAY, 0), "histogram_bin_edges: bins is 0"),
        (lambda: matrix.less(ARRAY, "x"), "less: an array can't be made of a str"),
        (lambda: matrix.add(ARRAY, "x"), "add: an array can't be made of a str"),
        (lambda: matrix.multiply(ARRAY.astype("complex64"), 2), "multiply: elements of type complex64"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(Exhausted, match=r"a value of shape \[1073741824, 1073741824\] would take"):
        matrix.zeros((1 << 30, 1 << 30))


def test_types_that_are_named_are_those_that_are_computed_with() -> None:
    with pytest.raises(Invalid) as caught:
        matrix.zeros(3, "number")
    _, _, names = str(caught.value).partition("use one of ")
    for name in names.split(", "):
        assert matrix.add(matrix.zeros(3, name), matrix.ones(3, name)).tolist() == [1, 1, 1]


_SHORT = frozenset(
    [
        "indices",
        "meshgrid",
        "triu_indices",
        "vander",
        "broadcast_shapes",
        "roll",
        "rot90",
        "array_split",
        "delete",
        "dsplit",
        "hsplit",
        "repeat",
        "resize",
        "split",
        "tile",
        "vsplit",
        "pad",
        "unwrap",
        "array_equal",
        "isclose",
        "packbits",
        "unpackbits",
        "percentile",
        "nanmedian",
        "nanpercentile",
        "nanquantile",
        "cumulative_sum",
        "gradient",
        "interp",
        "polymul",
        "choose",
        "digitize",
        "extract",
        "lexsort",
        "select",
        "take",
        "bincount",
        "histogram",
        "histogram_bin_edges",
        "unique",
        "tensordot",
        "linalg.matrix_norm",
        "linalg.multi_dot",
        "linalg.qr",
        "linalg.tensordot",
    ]
)
"""Functions that still let what isn't theirs through for some arguments."""
_READING = re.compile(r"array|elements|shape|ax[ei]s|indexed|matri|vector|bool|holds|takes|broadcast|integer")


def _thing(random: np.random.Generator) -> Any:
    shapes = [(3, 4), (2, 3, 4), (6,), (), (0,), (0, 3), (1, 1), (2, 2, 2, 2)]
    types = ["float64", "float32", "int64", "uint8", "bool", "float16", "complex64"]
    numbers = np.abs(np.asarray(random.normal(size=shapes[random.integers(len(shapes))]) * 4))
    array = numbers.astype(types[random.integers(len(types))])
    made = (
        lambda: int(random.integers(-3, 9)),
        lambda: float(random.normal() * 5),
        lambda: tuple(random.integers(-2, 5, 2).tolist()),
        lambda: None,
        lambda: "text",
        lambda: array,
        lambda: [array],
        lambda: np.nan,
        lambda: np.inf,
        lambda: 1 << 70,
        lambda: {},
        lambda: [[1, 2], [3]],
        lambda: np.array(["a", "b"]),
        lambda: slice(0, 2),
    )
    return made[random.integers(len(made))]()


def _spoilt(sample: Sample, number: int, random: np.random.Generator) -> Sample:
    """Return a call with one of its arguments, given or not, replaced by anything."""
    args, options = list(sample.args), dict(sample.options)
    parameters = list(inspect.signature(found(matrix, sample.name)).parameters.values())
    more = [
        each.name
        for each in parameters[len(args) :]
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name not in options
    ]
    places = [*range(len(args)), *options, *more]
    place = places[number % len(places)]
    if isinstance(place, int):
        args[place] = _thing(random)
    else:
        options[place] = _thing(random)
    return Sample(sample.name, tuple(args), options)


@pytest.mark.parametrize("name", [each for each in catalogue.functions() if each not in _SHORT])
def test_a_call_with_one_argument_spoilt_gives_a_result_or_a_refusal(name: str) -> None:
    """A refusal begins with the function's name, or says an argument's, or how an array can't be read.

    To hand the name down to where arrays are read would slow every call.
    """
    function, samples = found(matrix, name), [each for each in SAMPLES if each.name == name]
    random = np.random.default_rng(zlib.crc32(name.encode()))
    arguments = set(inspect.signature(function).parameters)
    results = 0
    for number in range(24):
        call = _spoilt(samples[random.integers(len(samples))], number, random)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                function(*call.args, **call.options)
            except (Invalid, Exhausted) as refusal:
                text = str(refusal)
                named = text.startswith(name.rpartition(".")[2]) or arguments & set(re.findall(r"\w+", text))
                assert named or _READING.search(text), text
            else:
                results += 1
    assert results < 24
