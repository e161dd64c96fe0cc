"""Generate the Python stubs and type stubs of every contract in ``protos/``.

Usage: ``python libs/protos/build.py [--quiet] [OUT]``. OUT defaults to this file's folder, so that the
namespace package ``isthmus`` stands beside it. Uses the protoc inside the pinned grpcio-tools; the output
isn't committed. Type stubs are made where mypy-protobuf is installed: development has it, a machine that only
runs the local stack doesn't. Nothing is done when the stubs are those of the protos already; new ones take
the old ones' place whole, under a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "protos"
PACKAGE = "isthmus"
STAMP = ".digest"


def type_plugins() -> dict[str, Path]:
    """Return the two protoc plugins of mypy-protobuf by name; none where it isn't installed."""
    folder = Path(sys.executable).parent
    plugins = {name: folder / name for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")}
    return plugins if all(path.exists() for path in plugins.values()) else {}


def digest(sources: list[Path]) -> str:
    """Return the digest of what decides the stubs' content: the protos, the compiler and this file."""
    state = hashlib.sha256(Path(__file__).read_bytes())
    state.update(metadata.version("grpcio-tools").encode())
    if type_plugins():
        state.update(metadata.version("mypy-protobuf").encode())
    for source in sources:
        state.update(b"\0" + source.relative_to(PROTOS).as_posix().encode() + b"\0" + source.read_bytes())
    return state.hexdigest()


def compile_protos(sources: list[Path], out: Path) -> None:
    """Run protoc over ``sources``, writing modules (and type stubs) under ``out``."""
    # Imported here: an up-to-date call, which every `make up` makes, shouldn't load a compiler.
    from importlib import resources

    from grpc_tools import protoc

    arguments = ["protoc", f"-I{PROTOS}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    arguments += [f"--python_out={out}", f"--grpc_python_out={out}"]
    plugins = type_plugins()
    if plugins:
        arguments += [f"--plugin={name}={path}" for name, path in plugins.items()]
        arguments += [f"--mypy_out=quiet:{out}", f"--mypy_grpc_out=quiet:{out}"]
    arguments += [str(source.relative_to(PROTOS)) for source in sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed: see the message above")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process: two builds at once would take each other's files away."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def build(out: Path) -> bool:
    """Bring the stubs under ``out`` up to the protos; return whether anything had to be generated."""
    sources = sorted(PROTOS.rglob("*.proto"))
    out.mkdir(parents=True, exist_ok=True)
    package, wanted = out / PACKAGE, digest(sources)
    with locked(out):
        stamp = package / STAMP
        if stamp.exists() and stamp.read_text("utf-8") == wanted:
            return False
        with tempfile.TemporaryDirectory(prefix=".build-", dir=out) as scratch:
            fresh = Path(scratch) / PACKAGE
            fresh.mkdir()
            compile_protos(sources, Path(scratch))
            (fresh / STAMP).write_text(wanted, "utf-8")
            if package.exists():
                package.rename(Path(scratch) / "old")
            fresh.rename(package)
    return True


def main(arguments: list[str]) -> None:
    """Build the stubs in the folder that is named, or beside this file, and say what was done."""
    quiet = "--quiet" in arguments
    out = next((Path(name).resolve() for name in arguments if name != "--quiet"), HERE)
    made = build(out)
    if made or not quiet:
        print(f"stubs in {out}: {'generated' if made else 'up to date'}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
