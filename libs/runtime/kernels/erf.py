"""The error function, since numpy has none.

W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23 (1969),
631-637: one form for small arguments, one of the complement for the others. The relative error stays below
1e-12. (His third form, beyond 4, matters for the complement alone.)
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SMALL = 0.46875
_LARGEST = 6.0
"""From here on the result is ±1."""
_A = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_B = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_C = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_D = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)


def erf(x: Array) -> Array:
    """Return the error function of an array of float64; NaN stays NaN."""
    size = np.minimum(np.abs(x), _LARGEST)
    square = np.square(np.minimum(size, _SMALL))
    near = x * (_polynomial(_A, square) / _polynomial(_B, square))
    far = 1.0 - np.exp(-np.square(size)) * (_polynomial(_C, size) / _polynomial(_D, size))
    return np.where(size <= _SMALL, near, np.copysign(far, x))


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total
