"""What must hold of the whole tree: packages, the namespace, the services' rooms, what no file may name."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SERVICES = sorted(
    path for path in (ROOT / "services").iterdir() if path.is_dir() and path.name != "__pycache__"
)
ROOMS = {"__main__", "app", "config", "service", "access"}
"""What every service has, as a file or as a folder of that name."""


def files() -> list[Path]:
    """Return the files that are, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def offenders(pattern: str) -> list[str]:
    found = []
    for path in files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


def test_the_namespace_has_no_init_file() -> None:
    # One __init__.py in `isthmus` would hide the parts that other distributions add to it.
    found = [
        path.relative_to(ROOT)
        for top in ("libs", "build", "protos")
        for path in (ROOT / top).rglob("isthmus/__init__.py")
    ]
    assert found == []


def test_every_package_has_an_init_file() -> None:
    # import-linter doesn't look into folders without one, so that its contracts would hold of nothing.
    folders = {
        path.parent
        for path in files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in {"libs", "services", "deploy"}
        and path.relative_to(ROOT).parts[:2] not in {("libs", "public"), ("libs", "protos")}
        and "migrations" not in path.parts
        and path.name != "env.py"
    }
    without = sorted(
        str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()
    )
    assert without == []


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_every_service_has_the_same_rooms(service: Path) -> None:
    present = {path.stem for path in service.iterdir()}
    assert present >= ROOMS
    assert any((service / "domain").glob("*.py"))


def test_no_file_names_a_package_registry() -> None:
    hosts = "|".join(("py" + "pi", "python" + "hosted", "npm" + "js"))
    assert offenders(rf"https?://[a-z0-9.-]*({hosts})|https?://" + r"deb\.") == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    homes = "|".join(("/" + "work/", "/" + "root/", "/" + r"home/[a-z]+/", "/" + "Users/"))
    assert offenders(rf"(^|[\s\"'(=:`])({homes})") == []


def test_nothing_that_can_be_made_again_is_committed() -> None:
    assert [path for path in files() if path.name.endswith(("_pb2.py", "_pb2_grpc.py", ".pyc", ".db"))] == []


STACK_TARGETS = ["up", "down", "status", "logs", "restart", "demo"]
TARGETS = [
    "setup",
    "protos",
    "stubs",
    "pins",
    "lint",
    "type",
    "test",
    "unit",
    "contract",
    "integration",
    "e2e",
]


@pytest.mark.parametrize("target", TARGETS + STACK_TARGETS)
def test_make_knows_the_target(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
