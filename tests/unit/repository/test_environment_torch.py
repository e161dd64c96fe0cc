"""torch in the environment: its CPU build, from where it can be had, and never the one with GPU libraries."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
UV = ["uv", "pip", "install"]
CPU = "2.13.0+cpu"


class Venv:
    """What is in the environment, and which commands put something into it."""

    def __init__(self, module: ModuleType, *, succeed: str = "") -> None:
        self.torch: tuple[str, str] | None = None
        self.ran: list[str] = []
        self._module = module
        self._succeed = succeed

    def build(self) -> tuple[str, str] | None:
        return self.torch

    def run(self, *command: str, check: bool = True) -> bool:
        line = " ".join(command)
        self.ran.append(line)
        done = bool(self._succeed) and self._succeed in line
        if done:
            self.torch = (self._module.TORCH.removeprefix("torch=="), "")
        return done


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", ROOT / "requirements" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TORCH", f"torch=={CPU}")
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "VENV", tmp_path)
    return module


def install(
    environment: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    *,
    folders: list[str],
    succeed: str,
    before: tuple[str, str] | None = None,
) -> Venv:
    venv = Venv(environment, succeed=succeed)
    venv.torch = before
    monkeypatch.setattr(environment, "run", venv.run)
    monkeypatch.setattr(environment, "torch_build", venv.build)
    monkeypatch.setattr(environment, "wheel_folders", lambda: folders)
    environment.install_torch(UV)
    return venv


def test_a_folder_of_wheels_is_asked_first_and_the_registry_not_at_all(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = install(environment, monkeypatch, folders=["/a", "/b"], succeed="--no-index")
    wanted = f"uv pip install --no-index --find-links /a --find-links /b --no-deps torch=={CPU}"
    assert venv.ran == [wanted]


def test_where_no_folder_has_it_the_index_of_cpu_builds_is_asked(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = install(environment, monkeypatch, folders=["/a"], succeed="--torch-backend cpu")
    assert len(venv.ran) == 2
    assert venv.ran[-1] == f"uv pip install --torch-backend cpu --no-deps torch=={CPU}"


def test_pip_comes_last(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = install(environment, monkeypatch, folders=[], succeed="-m pip")
    assert venv.ran[-1].endswith(f"-m pip install --quiet --no-deps torch=={CPU}")


def test_what_is_there_is_not_installed_again(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install(environment, monkeypatch, folders=["/a"], succeed="uv", before=(CPU, "")).ran == []


def test_a_build_with_gpu_libraries_is_replaced(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = install(environment, monkeypatch, folders=["/a"], succeed="uv", before=("2.13.0+cu130", "13.0"))
    assert venv.torch == (CPU, "")


def test_where_it_cannot_be_replaced_that_is_a_fault(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"torch 2\.13\.0\+cu130, built for CUDA 13\.0, where the CPU build"):
        install(environment, monkeypatch, folders=[], succeed="", before=("2.13.0+cu130", "13.0"))


def test_without_any_the_rest_is_of_use(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "STAMP", environment.ROOT / ".venv" / ".isthmus.json")
    install(environment, monkeypatch, folders=[], succeed="")
    said = capsys.readouterr().err
    assert (
        f"no CPU build of torch=={CPU} was found for Python {sys.version_info[0]}.{sys.version_info[1]}"
        in said
    )
    assert "rm .venv/.isthmus.json" in said


def test_the_version_is_read_without_importing_torch(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "version.py").write_text("__version__ = '9.9'\ncuda = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert environment.torch_build() == ("9.9", "")
    (package / "version.py").write_text("__version__ = '9.9+cu1'\ncuda = '1.0'\n")
    assert environment.torch_build() == ("9.9+cu1", "1.0")


def test_no_torch_is_told_from_a_bad_one(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "built-in\n", "")

    monkeypatch.setattr(environment.subprocess, "run", without)
    assert environment.torch_build() is None


@pytest.mark.parametrize(
    ("said", "folders"),
    [
        ("", []),
        ("global.cert='/ca'\nglobal.find-links='/a /b'\n", ["/a", "/b"]),
        ("global.find-links='\\n/a\\n/b'\n:env:.find-links='/a'\n", ["/a", "/b"]),
    ],
)
def test_the_folders_are_those_of_pips_settings(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, said: str, folders: list[str]
) -> None:
    def config(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-m", "pip", "config", "list"]
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(environment.subprocess, "run", config)
    assert environment.wheel_folders() == folders


def test_without_pip_its_variable_still_counts(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(environment.subprocess, "run", missing)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a\n/b")
    assert environment.wheel_folders() == ["/a", "/b"]
