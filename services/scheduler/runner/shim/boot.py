"""The keeper's first file: finds its package beside it, nothing else of ours on the path, and runs it."""

import importlib
import os
import sys

# pathlib and contextlib would cost each start as much as everything that is imported here.
# ruff: noqa: PTH100, PTH120

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(importlib.import_module("shim.keeper").main(sys.argv[1:]))
