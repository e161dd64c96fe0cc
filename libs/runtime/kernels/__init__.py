"""The numpy form of every atomic operator and of rasters: one file per kind.

Each `build` takes arrays that share memory with the tensors and returns a function without arguments that
computes into the output; it allocates next to nothing when it runs. Floating-point warnings are the
caller's to silence. What depends on data and can't be computed raises `DataFault`.
"""

from libs.runtime.kernels.fault import DataFault, Kernel
from libs.runtime.kernels.table import build_compute

__all__ = ["DataFault", "Kernel", "build_compute"]
