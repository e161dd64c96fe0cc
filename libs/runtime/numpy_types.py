"""The types of elements in numpy, and which numpy will do."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from libs.runtime.plan import DataType


def _dtype(type_: DataType) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(type_.name.lower())
    return dtype if sys.byteorder == "little" else dtype.newbyteorder("<")


DTYPES: Mapping[DataType, np.dtype[Any]] = {type_: _dtype(type_) for type_ in DataType}
"""Little-endian, as in plans."""


def check_numpy(version: str = np.__version__) -> None:
    """Raise ImportError for a numpy that is too old: the kernels need what 2.1 brought."""
    if tuple(map(int, version.split(".")[:2])) < (2, 1):
        raise ImportError(f"numpy {version} is too old to run plans; install 2.1 or newer", name="numpy")
