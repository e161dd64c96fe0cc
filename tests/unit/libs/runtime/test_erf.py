"""The error function against the C library's."""

import math

import numpy as np

from libs.runtime.kernels.erf import erf


def test_it_agrees_with_the_c_library_everywhere() -> None:
    x = np.concatenate([np.linspace(-8, 8, 40_001), np.logspace(-300, 2, 2000), -np.logspace(-300, 2, 2000)])
    expected = np.array([math.erf(value) for value in x])
    error = np.abs(erf(x) - expected)
    assert np.all(error <= 1e-12 * np.abs(expected))


def test_special_values() -> None:
    got = erf(np.array([0.0, -0.0, np.inf, -np.inf, np.nan]))
    assert got[:4].tolist() == [0.0, 0.0, 1.0, -1.0]
    assert np.isnan(got[4])
    assert np.signbit(got[1])
