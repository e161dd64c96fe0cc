"""Functions with OpenCV's names, for tasks; docs/compute-image.md has the table."""

# ruff: noqa: F403
from libs.compute.image import *
from libs.compute.image import __all__ as __all__
