"""The types of elements in numpy, and which numpy will do."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType

_NARROW: Mapping[DataType, str] = {
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT8E4M3FN: "float8_e4m3fn",
    DataType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    DataType.FLOAT8E5M2: "float8_e5m2",
    DataType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    DataType.FLOAT8E8M0: "float8_e8m0fnu",
    DataType.INT4: "int4",
    DataType.UINT4: "uint4",
    DataType.FLOAT4E2M1: "float4_e2m1fn",
    DataType.INT2: "int2",
    DataType.UINT2: "uint2",
}
"""Types that numpy has from the package ml_dtypes, by their names there."""


def _dtype(type_: DataType) -> np.dtype[Any]:
    if type_ is DataType.STRING:
        return np.dtype(np.object_)
    if type_ in _NARROW:
        return _narrow(type_)
    dtype: np.dtype[Any] = np.dtype(type_.name.lower())
    return dtype if sys.byteorder == "little" else dtype.newbyteorder("<")


def _narrow(type_: DataType) -> np.dtype[Any]:
    # Few plans need it, and devices do without.
    try:
        import ml_dtypes
    except ImportError:
        text = f"elements of type {type_.name} need the package ml_dtypes: pip install ml_dtypes"
        raise Invalid(text, reason="MISSING_PACKAGE") from None
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _NARROW[type_]))
    return dtype


class _Types(Mapping[DataType, np.dtype[Any]]):
    """Makes each type when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[DataType, np.dtype[Any]] = {}

    def __getitem__(self, type_: DataType) -> np.dtype[Any]:
        made = self._made.get(type_)
        if made is None:
            made = self._made[type_] = _dtype(type_)
        return made

    def __iter__(self) -> Iterator[DataType]:
        return iter(DataType)

    def __len__(self) -> int:
        return len(DataType)


DTYPES: Mapping[DataType, np.dtype[Any]] = _Types()
"""Little-endian, as in plans. Raises Invalid (MISSING_PACKAGE) for a type whose package isn't there."""


def check_numpy(version: str = np.__version__) -> None:
    """Raise ImportError for a numpy that is too old: the kernels need what 2.1 brought."""
    if tuple(map(int, version.split(".")[:2])) < (2, 1):
        raise ImportError(f"numpy {version} is too old to run plans; install 2.1 or newer", name="numpy")
