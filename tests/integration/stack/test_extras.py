"""Each extra's pins are enough for what is installed with them: nothing is imported that isn't there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.layout import ROOT

PARTS = {
    "device-agent": ["services.device_agent"],
    "gateway": ["services.gateway"],
    "deployer": ["services.deployer"],
    "engine": ["services.engine"],
    "scheduler": ["services.scheduler"],
    "serving": ["services.serving"],
    "tuner": ["services.tuner"],
    "cli": ["libs.cli"],
}

# Every module below the packages, found by name and imported for real; tests' helpers aside.
IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        words = set(found.name.split("."))
        if words & {"testing", "migrations", "__main__"}:
            continue
        importlib.import_module(found.name)
print("all of", *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it goes into an image."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("extra", PARTS)
def test_the_pins_of_an_extra_are_enough(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    pins = ROOT / "requirements" / f"{extra}.txt"
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        install = [str(uv), "pip", "install", "--python", str(python)]
    else:
        install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    subprocess.run([*install, "--quiet", "--require-hashes", "--requirement", str(pins)], check=True)
    subprocess.run([*install, "--quiet", "--no-deps", str(wheel)], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", IMPORT_ALL, *PARTS[extra]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"all of {' '.join(PARTS[extra])}\n"
