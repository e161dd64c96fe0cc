"""Arrays for tasks, on the operators that models run on: `from isthmus.compute import matrix`.

`matrix` has functions with numpy's names. What they refuse raises `Invalid`, whose message says why.
"""

from libs.common.errors import Invalid

__all__ = ["Invalid"]
