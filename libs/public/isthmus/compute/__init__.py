"""Arrays for tasks, on the operators that models run on: `from isthmus.compute import matrix`.

`matrix` has functions with numpy's names, `image` with OpenCV's. What they refuse raises
`Invalid`, what is too large `Exhausted`; the message says why.
"""

from libs.common.errors import Exhausted, Invalid

__all__ = ["Exhausted", "Invalid"]
