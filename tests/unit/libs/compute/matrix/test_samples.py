"""Every function against numpy's of its name."""

from __future__ import annotations

import numpy as np
import pytest

from libs.compute import matrix
from libs.compute.matrix import catalogue
from libs.compute.samples import SAMPLES
from libs.compute.testing import Sample, assert_same, found


@pytest.mark.parametrize("sample", SAMPLES, ids=map(str, range(len(SAMPLES))))
def test_the_result_is_numpys(sample: Sample) -> None:
    with np.errstate(all="ignore"):
        theirs = found(np, sample.name)(*sample.args, **sample.options)
    if sample.name == "unique_values":
        theirs = np.sort(theirs)  # its order is open
    ours = found(matrix, sample.name)(*sample.args, **sample.options)
    assert_same(ours, theirs, atol=1e-15)


def test_every_function_has_a_sample() -> None:
    assert {sample.name for sample in SAMPLES} == set(catalogue.functions())
