"""Host operators: one file per kind.

Each takes what registers hold and returns a list of what its outputs' registers will. What depends on data
and can't be done raises `DataFault`; memory is asked of `Limits` before it is taken.
"""

from libs.runtime.host.limits import Limits
from libs.runtime.host.table import host_operator

__all__ = ["Limits", "host_operator"]
