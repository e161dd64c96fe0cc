"""What image functions do when they are traced into plans is what they do at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from libs.compute import image
from libs.compute.image import catalogue
from libs.compute.image.samples import Case, cases
from libs.compute.tensor import asarray
from libs.compute.testing import arrays_in, replaced
from services.engine.testing_tracing import run_traced

FEW = 3
"""Calls of one function that are traced: the first, the last, and some between."""
CASES = {
    name: calls
    for name, every in cases().items()
    if (calls := [case for case in every if arrays_in([case.args, case.options])])
}
AT_ONCE = {
    "borderInterpolate",
    "getAffineTransform",
    "getDerivKernels",
    "getGaborKernel",
    "getGaussianKernel",
    "getPerspectiveTransform",
    "getRotationMatrix2D",
    "getStructuringElement",
}
"""Functions of numbers that are known."""


def _called(case: Case, tensors: list[Any]) -> list[Any]:
    args, options = replaced([list(case.args), dict(case.options)], tensors)
    if case.name == "createCLAHE":
        return [image.createCLAHE(*args[1:]).apply(args[0])]
    return _parts(getattr(image, case.name)(*args, **options))


def _parts(result: Any) -> list[Any]:
    if isinstance(result, Mapping):
        return list(result.values())
    if isinstance(result, list | tuple):
        return [part for each in result for part in _parts(each)]
    return [result]


@pytest.mark.parametrize("name", CASES)
def test_traced_functions_give_what_they_give_at_once(name: str) -> None:
    every = CASES[name]
    for case in every[:: max(1, len(every) // FEW)]:
        arrays = arrays_in([list(case.args), dict(case.options)])
        named = {f"x{place}": array for place, array in enumerate(arrays)}
        got = list(
            run_traced(lambda case=case, **tensors: _called(case, list(tensors.values())), named).values()
        )
        expected = _called(case, [asarray(array) for array in arrays])
        assert len(got) == len(expected)
        for one, other in zip(got, map(np.asarray, expected), strict=True):
            assert one.dtype == other.dtype
            rtol = 1e-5 if other.dtype == np.float32 else 1e-10 if other.dtype == np.float64 else 0
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


def test_every_function_is_traced_but_those_of_numbers() -> None:
    assert set(catalogue.functions()) - set(CASES) == {*AT_ONCE, "imdecode"}
