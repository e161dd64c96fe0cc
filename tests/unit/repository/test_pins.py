"""The pins: complete, hashed, one version per package, small for a device."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = [
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
    "dev",
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def pins(name: str) -> dict[str, set[str]]:
    """Return the versions by package: more than one where the pin depends on the Python."""
    found: dict[str, set[str]] = {}
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    for package, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


def wanted(extra: str) -> list[Requirement]:
    """Return what ``pyproject.toml`` asks for under an extra, the project's own extras resolved."""
    asked = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]]
    found = [requirement for requirement in asked if requirement.name != "isthmus"]
    for requirement in asked:
        if requirement.name == "isthmus":
            for inner in requirement.extras:
                found += wanted(inner)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_requirement_of_the_project_is_pinned(extra: str) -> None:
    have = pins(extra)
    for requirement in wanted(extra):
        versions = have.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in requirements/{extra}.txt: run `make pins`"
        for version in versions:
            assert requirement.specifier.contains(version), (
                f"{requirement} against {version}: run `make pins`"
            )


@pytest.mark.parametrize("extra", ["bootstrap", *EXTRAS])
def test_every_pin_has_a_hash(extra: str) -> None:
    text = (ROOT / "requirements" / f"{extra}.txt").read_text("utf-8")
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_package_has_one_version_everywhere(extra: str) -> None:
    everything = pins("dev")
    assert {
        name: versions for name, versions in pins(extra).items() if not versions <= everything[name]
    } == {}


def test_a_device_installs_little() -> None:
    # numpy is for the workers of tasks that have a model.
    heavy = {
        "aiohttp",
        "alembic",
        "click",
        "grpcio-reflection",
        "onnx",
        "onnxruntime",
        "rich",
        "sqlalchemy",
        "torch",
    }
    assert heavy & set(pins("device-agent")) == set()


def test_torch_stays_out_of_the_compiled_set() -> None:
    # A plain resolve takes the build with GPU libraries, gigabytes of them.
    assert [name for name in pins("dev") if name.startswith(("torch", "nvidia", "triton"))] == []


def test_what_torch_asks_for_is_pinned() -> None:
    # It is installed without its requirements (requirements/environment.py).
    asked = [Requirement(text) for text in metadata.requires("torch") or []]
    for requirement in asked:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            versions = pins("stack").get(canonicalize_name(requirement.name), set())
            assert versions, (
                f"{requirement} is not in requirements/stack.txt: name it in the extra `training`"
            )
            assert all(requirement.specifier.contains(version) for version in versions)
