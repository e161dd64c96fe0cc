"""Resolve ``pyproject.toml`` into the pins of this folder: one file per extra, with hashes.

Usage: ``make pins`` (``requirements/compile.py [--upgrade]``). Everything is resolved once, into ``dev.txt``;
the other files are cut out of that resolution, so that one package has one version wherever it is installed.
The pins hold for every platform and Python that the project supports, and no registry's address.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "requirements"
EXTRAS = (
    "device-agent",
    "gateway",
    "deployer",
    "engine",
    "scheduler",
    "serving",
    "tuner",
    "cli",
    "stack",
    "image",
)
"""The extras of ``pyproject.toml`` that are installed somewhere by themselves, besides ``dev``."""


def resolve(*arguments: str) -> None:
    """Run one ``uv pip compile``, in the checkout."""
    subprocess.run(
        [
            str(Path(sys.executable).parent / "uv"),
            "pip",
            "compile",
            "--quiet",
            "--universal",
            "--python-version=3.11",
            "--generate-hashes",
            "--no-emit-index-url",
            "--no-emit-find-links",
            "--custom-compile-command=make pins",
            *arguments,
        ],
        cwd=ROOT,
        check=True,
        # Settings of this machine don't decide what the project pins.
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
    )


def main(arguments: list[str]) -> None:
    """Write every file of pins; ``--upgrade`` moves to the newest releases that ``pyproject.toml`` allows."""
    resolve("requirements/bootstrap.in", "--output-file=requirements/bootstrap.txt", *arguments)
    resolve("pyproject.toml", "--extra=dev", "--output-file=requirements/dev.txt", *arguments)
    for extra in EXTRAS:
        out = f"requirements/{extra}.txt"
        (ROOT / out).unlink(missing_ok=True)
        resolve(
            "pyproject.toml", f"--extra={extra}", "--constraint=requirements/dev.txt", f"--output-file={out}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
