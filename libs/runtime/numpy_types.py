"""The types of elements in numpy."""

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
