"""The script behind `make setup`: what it says where it can't go on, and when it has nothing to do."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, working on a checkout of its own."""
    path = ROOT / "requirements" / "environment.py"
    spec = importlib.util.spec_from_file_location("environment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "requirements").mkdir()
    for name in ("bootstrap.txt", "stack.txt", "dev.txt"):
        (tmp_path / "requirements" / name).write_text(f"# {name}\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    venv = tmp_path / ".venv"
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", venv)
    monkeypatch.setattr(module, "STAMP", venv / ".isthmus.json")
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "torch_build", lambda: (module.TORCH.removeprefix("torch=="), ""))
    venv.mkdir()
    return module


def test_an_old_python_is_refused_with_what_to_do(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"Python 3\.11 or newer is needed.*apt-get.*PYTHON="):
        environment.require_python()


def test_a_newer_sibling_on_the_path_is_used(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(environment.sys, "argv", ["environment.py", "dev"])
    monkeypatch.setattr(
        environment.shutil, "which", lambda name: "/opt/python3.12" if name == "python3.12" else None
    )

    class ReplacedError(Exception):
        pass

    def execv(path: str, arguments: list[str]) -> None:
        raise ReplacedError(path, arguments)

    monkeypatch.setattr(environment.os, "execv", execv)
    with pytest.raises(ReplacedError) as caught:
        environment.require_python()
    assert caught.value.args == ("/opt/python3.12", ["/opt/python3.12", "environment.py", "dev"])


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_missing_venv_module_names_its_package(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        environment.importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )
    with pytest.raises(SystemExit, match=rf"{module}.*apt-get install python3-venv"):
        environment.require_venv_module()


def test_an_unknown_level_is_refused(environment: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"unknown level 'prod'; there are: stack, dev"):
        environment.main(["prod"])


def commands_of(environment: ModuleType, monkeypatch: pytest.MonkeyPatch, level: str) -> list[str]:
    ran: list[str] = []

    def run(*command: str, check: bool = True) -> bool:
        ran.append(" ".join(command))
        return True

    monkeypatch.setattr(environment, "run", run)
    environment.main([level])
    return ran


def test_a_second_call_installs_nothing(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    first = commands_of(environment, monkeypatch, "dev")
    assert any("dev.txt" in command for command in first)
    second = commands_of(environment, monkeypatch, "dev")
    assert [command for command in second if " install " in command] == []


def test_the_environment_of_development_serves_the_stack(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands_of(environment, monkeypatch, "dev")
    assert not any(" install " in command for command in commands_of(environment, monkeypatch, "stack"))


def test_the_stacks_environment_does_not_serve_development(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands_of(environment, monkeypatch, "stack")
    assert any("dev.txt" in command for command in commands_of(environment, monkeypatch, "dev"))


@pytest.mark.parametrize("changed", ["requirements/dev.txt", "requirements/bootstrap.txt", "pyproject.toml"])
def test_a_changed_pin_installs_again(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    commands_of(environment, monkeypatch, "dev")
    (environment.ROOT / changed).write_text("# changed\n")
    assert any("dev.txt" in command for command in commands_of(environment, monkeypatch, "dev"))


def test_an_installation_that_failed_is_done_again(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands_of(environment, monkeypatch, "stack")

    def broken(level: str) -> None:
        raise environment.fail("no network")

    with monkeypatch.context() as patch:
        patch.setattr(environment, "run", lambda *command, check=True: True)
        patch.setattr(environment, "install", broken)
        with pytest.raises(SystemExit):
            environment.main(["dev"])
    assert environment.installed() == {}


def test_pip_installs_where_uv_cannot(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(*command: str, check: bool = True) -> bool:
        ran.append(" ".join(command))
        return not command[0].endswith("uv")

    monkeypatch.setattr(environment, "run", run)
    environment.main(["stack"])
    assert any(" -m pip install" in command and "stack.txt" in command for command in ran)
    assert any(" -m pip install" in command and "--editable" in command for command in ran)


def test_a_stamp_that_is_no_stamp_counts_as_none(environment: ModuleType) -> None:
    for text in ("", "[]", '"x"', "{"):
        environment.STAMP.write_text(text)
        assert environment.installed() == {}
    environment.STAMP.write_text(json.dumps({"dev": "x"}))
    assert environment.installed() == {"dev": "x"}


def test_the_script_needs_only_the_standard_library() -> None:
    path = ROOT / "requirements" / "environment.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "nonsense"], capture_output=True, text=True, timeout=60
    )
    assert "unknown level 'nonsense'" in done.stderr


@pytest.mark.parametrize(("last", "asked"), [("install", True), ("venv", False)])
def test_an_installation_that_fails_asks_for_the_network(
    environment: ModuleType, last: str, asked: bool
) -> None:
    with pytest.raises(SystemExit, match="this command failed") as failed:
        environment.run(sys.executable, "-c", "raise SystemExit(1)", last)
    assert ("is the network there?" in str(failed.value)) is asked
