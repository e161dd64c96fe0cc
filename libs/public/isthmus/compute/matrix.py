"""Functions with numpy's names, for tasks; docs/compute.md has the table."""

# ruff: noqa: F403
from libs.compute.matrix import *
from libs.compute.matrix import __all__ as __all__
