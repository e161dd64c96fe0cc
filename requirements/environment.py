"""Make the checkout's Python environment, ``.venv``, from the pins beside this file.

Usage: ``python3 requirements/environment.py [stack|dev]`` (``make setup`` runs it with ``dev``). ``stack``
installs what running the local stack takes; ``dev`` adds the tools of development and contains ``stack``. The
pins are installed with their hashes by uv, itself a pin (``bootstrap.txt``), or by pip where uv doesn't work;
then torch, the project itself, editable, and the generated stubs. A stamp in ``.venv`` holds the digest of
everything that went in, so that a second call is over at once.

torch is no pin: on Linux a resolution takes the build with GPU libraries, gigabytes of them. Its CPU build
comes from a folder of wheels where pip's settings name one (``find-links``) that has it, else from PyTorch's
own index of CPU builds, which uv knows. Where neither has one for this Python, all works but training jobs,
and this says so.

Runs under whatever ``python3`` is there and needs nothing but the standard library.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".isthmus.json"
OLDEST = (3, 11)
LEVELS = ("stack", "dev")
"""Each level contains those before it."""
# The builds for Linux differ by this suffix; elsewhere there is only the one for CPUs.
TORCH = "torch==2.13.0" + ("+cpu" if sys.platform == "linux" else "")


def say(text: str) -> None:
    """Print one line of progress to the standard error."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> SystemExit:
    """Return the exit to raise when the environment can't be made, with what to do."""
    return SystemExit("setup: " + text)


def require_python() -> None:
    """Go on under a Python that is new enough: this one, else one of its newer siblings on PATH."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(11, 16):
        found = shutil.which("python3.%d" % minor)
        if found:
            os.execv(found, [found, *sys.argv])
    raise fail(
        "Python %d.%d or newer is needed, and %s is %s; install one (Debian 12, Ubuntu 24.04: apt-get "
        "install python3 python3-venv) or name it: make setup PYTHON=/path/to/python3"
        % (*OLDEST, sys.executable, sys.version.split()[0])
    )


def require_venv_module() -> None:
    """Refuse a Python whose venv module was packaged away, as Debian's is."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise fail(
            "the module %s of %s is missing; Debian and Ubuntu keep it in a package of its own: "
            "apt-get install python3-venv" % (missing[0], sys.executable)
        )


def digest(level: str) -> str:
    """Return the digest of everything that decides what is in the environment at ``level``."""
    parts = [
        str(ROOT).encode(),
        sys.version.encode(),
        *(
            path.read_bytes()
            for path in (
                ROOT / "requirements" / "bootstrap.txt",
                ROOT / "requirements" / (level + ".txt"),
                ROOT / "pyproject.toml",
                Path(__file__),
            )
        ),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def installed() -> dict[str, str]:
    """Return the digest by level that the environment was made from; empty when there is none that runs."""
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
        subprocess.run([str(PYTHON), "-c", ""], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def run(*command: str, check: bool = True) -> bool:
    """Run a command in the checkout, showing what it says; return whether it succeeded."""
    environment = dict(os.environ, UV_PYTHON_DOWNLOADS="never", PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    environment.pop("PIP_USER", None)
    done = subprocess.run(list(command), cwd=ROOT, env=environment).returncode == 0
    if check and not done:
        raise fail(
            "this command failed, see its message above: %s%s"
            % (" ".join(command), "; is the network there?" if "install" in command else "")
        )
    return done


def make_venv() -> None:
    """Create ``.venv`` unless one is there that runs at this place."""
    probe = [str(PYTHON), "-c", "import sys; print(sys.prefix, '%d.%d' % sys.version_info[:2])"]
    wanted = "%s %d.%d" % (VENV, *sys.version_info[:2])
    try:
        answer = subprocess.run(probe, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        answer = ""
    if answer != wanted:
        say("setup: making .venv with Python " + sys.version.split()[0])
        run(sys.executable, "-m", "venv", "--clear", str(VENV))


def pip(*arguments: str) -> None:
    """Run the environment's pip, bringing it in first where it isn't there."""
    if not run(
        str(PYTHON),
        "-c",
        "import importlib.util, sys; sys.exit(not importlib.util.find_spec('pip'))",
        check=False,
    ):
        run(str(PYTHON), "-m", "ensurepip")
    run(str(PYTHON), "-m", "pip", *arguments)


def install(level: str) -> None:
    """Install the pins of ``level``, torch and the project itself."""
    pins = ROOT / "requirements" / (level + ".txt")
    uv = VENV / "bin" / "uv"
    if not uv.exists():
        pip("install", "--quiet", "--require-hashes", "-r", str(ROOT / "requirements" / "bootstrap.txt"))
    say("setup: installing requirements/%s.txt" % level)
    with_uv = [str(uv), "pip", "install", "--quiet", "--python", str(PYTHON)]
    # No build isolation: the build backend comes from the pins, not from whatever is newest today.
    project = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    if run(*with_uv, "--require-hashes", "-r", str(pins), check=False):
        run(*with_uv, *project)
    else:
        say("setup: uv couldn't install them (above); trying pip")
        pip("install", "--quiet", "--require-hashes", "-r", str(pins))
        pip("install", "--quiet", *project)
    install_torch(with_uv)


def wheel_folders() -> list[str]:
    """Return the folders and pages of wheels that pip's settings name: uv doesn't read them."""
    try:
        done = subprocess.run(
            [str(PYTHON), "-m", "pip", "config", "list"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        settings = [line.partition("=") for line in done.stdout.splitlines()]
        found = [ast.literal_eval(value).split() for key, _, value in settings if key.endswith(".find-links")]
    except (OSError, subprocess.SubprocessError, ValueError, SyntaxError):
        found = [os.environ.get("PIP_FIND_LINKS", "").split()]
    return list(dict.fromkeys(folder for folders in found for folder in folders))


def torch_build() -> tuple[str, str] | None:
    """Return torch's version in ``.venv`` and that of its CUDA, "" for none; None where there is no torch."""
    where = "import importlib.util as u; print((u.find_spec('torch') or u.find_spec('sys')).origin)"
    try:
        # Found, not imported: that takes seconds.
        done = subprocess.run(
            [str(PYTHON), "-c", where], check=True, capture_output=True, text=True, cwd=VENV
        )
        values = runpy.run_path(str(Path(done.stdout.strip()).with_name("version.py")))
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(values["__version__"]), str(values.get("cuda") or "")


def install_torch(with_uv: list[str]) -> None:
    """Install the CPU build of torch; say so where none is to be had for this Python."""
    if "torch==" + (torch_build() or ("", ""))[0] == TORCH:
        return
    say("setup: installing %s" % TORCH)
    # What it asks for is among the pins.
    wanted = ["--no-deps", TORCH]
    folders = [part for folder in wheel_folders() for part in ("--find-links", folder)]
    attempts = [
        [*with_uv, "--torch-backend", "cpu", *wanted],
        [str(PYTHON), "-m", "pip", "install", "--quiet", *wanted],
    ]
    if folders:
        attempts.insert(0, [*with_uv, "--no-index", *folders, *wanted])
    if not any(run(*attempt, check=False) for attempt in attempts):
        say(
            "setup: no CPU build of %s was found for Python %d.%d (above): training jobs that use torch "
            "won't run, nor will their tests; everything else will. Is the network there? To try again: rm %s"
            % (TORCH, *sys.version_info[:2], STAMP.relative_to(ROOT))
        )
    version, cuda = torch_build() or ("", "")
    if cuda:
        raise fail(
            ".venv holds torch %s, built for CUDA %s, where the CPU build belongs; remove .venv and try again"
            % (version, cuda)
        )


def main(arguments: list[str]) -> int:
    """Bring the environment up to the asked level and the stubs up to the protos."""
    require_python()
    level = arguments[0] if arguments else "dev"
    if level not in LEVELS:
        raise fail("unknown level %r; there are: %s" % (level, ", ".join(LEVELS)))
    have = installed()
    if not any(have.get(name) == digest(name) for name in LEVELS[LEVELS.index(level) :]):
        require_venv_module()
        make_venv()
        # Without its stamp, an environment that this call leaves half-made is made again by the next.
        STAMP.unlink(missing_ok=True)
        install(level)
        contained = LEVELS[: LEVELS.index(level) + 1]
        STAMP.write_text(json.dumps({name: digest(name) for name in contained}), "utf-8")
    run(str(PYTHON), str(ROOT / "libs" / "protos" / "build.py"), "--quiet")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
