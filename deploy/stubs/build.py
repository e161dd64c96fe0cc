"""Assemble the client's project and build its wheel."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Generate all stubs under ``out``, with the compiler that development uses."""
    spec = importlib.util.spec_from_file_location("stub_build", ROOT / "libs" / "protos" / "build.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(ROOT / "libs" / "protos" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(out)
    (out / "isthmus" / module.STAMP).unlink()


def oldest(stubs: Path) -> dict[str, str]:
    """Return the oldest grpcio and protobuf that run the stubs, as the generated code itself says."""
    found: dict[str, str] = {}
    for path in stubs.rglob("*_pb2*.py"):
        text = path.read_text("utf-8")
        if match := re.search(r"^GRPC_GENERATED_VERSION = '([\d.]+)'", text, re.MULTILINE):
            found["grpcio"] = match[1]
        if match := re.search(r"^# Protobuf Python Version: ([\d.]+)", text, re.MULTILINE):
            found["protobuf"] = match[1]
    return found


def assemble(project: Path) -> None:
    """Lay out the client's project in the empty folder ``project``."""
    generate(project)
    shutil.copytree(
        ROOT / "libs" / "public" / "isthmus" / "client",
        project / "isthmus" / "client",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for part in (project / "isthmus").iterdir():
        (part / "py.typed").touch()
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    template = Template((HERE / "pyproject.toml.in").read_text("utf-8"))
    (project / "pyproject.toml").write_text(
        template.substitute(
            oldest(project), version=ours["version"], requires_python=ours["requires-python"]
        ),
        "utf-8",
    )
    shutil.copy(HERE / "README.md", project)
    shutil.copy(ROOT / "LICENSE", project)


def build(folder: Path) -> Path:
    """Build the wheel under ``folder``, making ``project/`` and ``dist/`` in it anew, and return its path."""
    project, dist = folder / "project", folder / "dist"
    for old in (project, dist):
        shutil.rmtree(old, ignore_errors=True)
    project.mkdir(parents=True)
    assemble(project)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(dist)],
        cwd=project,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    (wheel,) = dist.glob("*.whl")
    return wheel
