"""First file of a worker, run as `python -I -S boot.py <settings as JSON>`.

`-I -S` leaves only the standard library on the path: no environment variables, no `.pth` files (one of them
would put a checkout on the path), no folder of this file. What scripts may import is added here, and our own
modules are loaded under a private package name, so that no script imports or shadows them by accident.
"""

import importlib.util
import json
import sys
from pathlib import Path


def _boot() -> None:
    settings = json.loads(sys.argv[1])
    folder = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "_isthmus_worker", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"no worker package at {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["_isthmus_worker"] = package
    spec.loader.exec_module(package)
    sys.path.extend(settings["import_paths"])
    sys.argv = [""]
    importlib.import_module("_isthmus_worker.main").main(settings)


if __name__ == "__main__":
    _boot()
