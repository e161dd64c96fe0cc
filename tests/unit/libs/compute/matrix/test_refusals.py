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
        (lambda: matrix.power(2, -1), "power: integers have no negative powers"),
        (lambda: matrix.pow([2, 4], [1, -2]), "power: integers have no negative powers"),
        (lambda: 2 ** matrix.asarray([1, -1]), "power: integers have no negative powers"),
        (lambda: matrix.unique(ARRAY, ARRAY), "unique: return_index is array"),
        (lambda: matrix.tile(ARRAY, [2, -1]), "tile: reps is -1"),
        (lambda: matrix.repeat(ARRAY, 1.5), "repeat: repeats holds float64"),
        (lambda: matrix.repeat(ARRAY, [1.0, 2, 3]), "repeat: repeats holds float64"),
        (lambda: matrix.hsplit(ARRAY, 0), "hsplit: indices_or_sections is 0"),
        (lambda: matrix.vsplit(np.eye(3), 2), "vsplit: 3 places don't make 2 equal parts"),
        (lambda: matrix.array_split(ARRAY, 1 << 40), "array_split: indices_or_sections is 1099511627776"),
        (lambda: matrix.delete(ARRAY, [0.5]), "delete: obj holds float64"),
        (lambda: matrix.roll(ARRAY, 1, ()), "roll: 1 shifts for 0 axes"),
        (lambda: matrix.rot90(np.eye(2), 1, 3), "rot90: axes is 3; it is a list"),
        (lambda: matrix.take(ARRAY, 7), "take: index 7 is out of range"),
        (lambda: matrix.take(ARRAY, 1, mode="x"), "take: mode is 'x'; it is one of 'raise', 'wrap', 'clip'"),
        (lambda: matrix.histogram(ARRAY, 3, (0, 1, 2)), "histogram: range has two ends, not 3"),
        (lambda: matrix.interp(ARRAY, ARRAY, ARRAY, period="1"), "interp: period is '1'; it is a number"),
        (lambda: matrix.polymul([], ARRAY), "polymul: a convolution needs an element"),
        (lambda: matrix.tensordot(ARRAY, ARRAY, 2), "tensordot: 2 axes can't be paired"),
        (lambda: matrix.lexsort(([1, 2], [1, 2, 3])), "lexsort: sizes 2 and 3"),
        (lambda: matrix.bincount([1, 2], [1.0]), "bincount: weights: sizes 2 and 1"),
        (lambda: matrix.pad(ARRAY, [[1, 2], [3]]), "pad: pad_width holds [1, 2]"),
        (lambda: matrix.pad(ARRAY, np.float32(1)), "pad: pad_width holds np.float32(1.0)"),
        (lambda: matrix.searchsorted(ARRAY, 1, sorter=2), "searchsorted: sorter is a vector"),
        (lambda: matrix.pad(ARRAY, slice(0, 2)), "pad: pad_width holds slice(0, 2, None)"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(Exhausted, match=r"a value of shape \[1073741824, 1073741824\] would take"):
        matrix.zeros((1 << 30, 1 << 30))


def test_numbers_and_lists_may_be_of_numpys_types() -> None:
    x, two = np.arange(6.0).reshape(2, 3), np.int64(2)
    for given, wanted in (
        (matrix.tile(x, np.array([1, 2])), np.tile(x, np.array([1, 2]))),
        (matrix.roll(x, np.array([1, 2]), (0, 1)), np.roll(x, np.array([1, 2]), (0, 1))),
        (matrix.resize(x, [two, two]), np.resize(x, [two, two])),
        (matrix.repeat(x, two, 0), np.repeat(x, two, 0)),
        (matrix.rot90(x, axes=np.array([1, 0])), np.rot90(x, axes=np.array([1, 0]))),
        (matrix.tensordot(x, x, np.array([[1], [1]])), np.tensordot(x, x, np.array([[1], [1]]))),
        (matrix.delete(x, matrix.asarray([0, 2]), 1), np.delete(x, [0, 2], 1)),
        (matrix.split(x, np.array(2))[1], np.split(x, 2)[1]),
        (matrix.array_split(x, matrix.asarray([1, 2]), 1)[1], np.array_split(x, [1, 2], 1)[1]),
        (matrix.unique(x, equal_nan=np.bool_(True)), np.unique(x)),
        (matrix.linalg.cond(x[:, :2] + 1, np.int64(1)), np.linalg.cond(x[:, :2] + 1, 1)),
        (matrix.linalg.cond(x[:, :2] + 1, np.float32(np.inf)), np.linalg.cond(x[:, :2] + 1, np.inf)),
        (matrix.power(2.0, -1), 0.5),
        (matrix.power(np.array([2, 3]), -1.0), [1 / 2, 1 / 3]),
    ):
        np.testing.assert_allclose(np.asarray(given), wanted)


def test_types_that_are_named_are_those_that_are_computed_with() -> None:
    with pytest.raises(Invalid) as caught:
        matrix.zeros(3, "number")
    _, _, names = str(caught.value).partition("use one of ")
    for name in names.split(", "):
        assert matrix.add(matrix.zeros(3, name), matrix.ones(3, name)).tolist() == [1, 1, 1]


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


@pytest.mark.parametrize("name", catalogue.functions())
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
