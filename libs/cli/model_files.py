"""What commands about models are given: files or digests, bounds and sizes of dimensions."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from isthmus.deployer.v1 import manifest_pb2
from isthmus.engine.v1 import engine_pb2, engine_pb2_grpc
from libs.cli.blobs import stat, upload
from libs.cli.onnx_files import external_files
from libs.cli.session import Session
from libs.cli.values import BOUNDS, NAMED_SIZE
from libs.common.errors import Invalid, NotFound

ANSWER_S = 3600.0
"""For what makes a plan."""
DIGEST = "sha256:"
Bounds = tuple[tuple[str, int, int], ...]
DIMENSIONS = click.option(
    "--dim",
    "bounds",
    multiple=True,
    type=BOUNDS,
    metavar="NAME=LEAST..MOST",
    help="Bounds of a dimension of the model, such as batch=1..64, or its one size; repeat.",
)
SIZES = click.option(
    "--size",
    "sizes",
    multiple=True,
    type=NAMED_SIZE,
    metavar="NAME=SIZE",
    help="Size of a dimension that figures are told at, such as batch=8; others are the smallest. Repeat.",
)


def stub(session: Session) -> engine_pb2_grpc.EngineServiceStub:
    """Return the engine behind the gateway."""
    return engine_pb2_grpc.EngineServiceStub(session.channel)


def check_bounds(bounds: Bounds) -> dict[str, tuple[int, int]]:
    """Return bounds by name; raise UsageError for one that is given twice."""
    _once((name for name, _, _ in bounds), "--dim")
    return {name: (least, most) for name, least, most in bounds}


def bounds_message(bounds: Bounds) -> list[engine_pb2.DimensionBounds]:
    """Return bounds as a request has them; raise UsageError for one that is given twice."""
    return [
        engine_pb2.DimensionBounds(name=name, minimum=least, maximum=most)
        for name, (least, most) in check_bounds(bounds).items()
    ]


def check_sizes(sizes: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """Return sizes by name; raise UsageError for one that is given twice."""
    _once((name for name, _ in sizes), "--size")
    return dict(sizes)


def _once(names: Iterable[str], flag: str) -> None:
    found = list(names)
    if len(set(found)) != len(found):
        raise click.UsageError(f"{flag}: a dimension is given twice")


def _leads_over_link(folder: Path, name: str) -> bool:
    parts = Path(name).parts
    return any((folder / Path(*parts[:count])).is_symlink() for count in range(1, len(parts) + 1))


@contextmanager
def refusals_of(subject: str) -> Iterator[None]:
    """Let what a service refuses of a file, or a digest, begin with its name, once.

    What it says of a field of the request is the request's.
    """
    try:
        yield
    except Invalid as error:
        if "field" not in error.metadata and not error.message.startswith(subject):
            error.message = f"{subject}: {error.message}"
        raise


def model_blob(session: Session, subject: str) -> manifest_pb2.BlobRef:
    """Return the blob of a digest, or that of a file, uploading it.

    Raises:
        NotFound: when there is neither.
        Invalid: for an empty file.
    """
    if subject.startswith(DIGEST):
        return stat(session, subject)
    path = Path(subject)
    if not path.exists():
        raise NotFound(
            f"{subject}: there is no such file, and it is no digest ({DIGEST}...)", reason="NO_FILE"
        )
    if path.is_file() and path.stat().st_size == 0:
        raise Invalid(f"{subject}: is empty", reason="BAD_FILE")
    return upload(session, path)


def data_blobs(session: Session, subject: str) -> dict[str, manifest_pb2.BlobRef]:
    """Upload the files that a model keeps its data in; return them by their path in its folder.

    A model that is named by its digest comes alone.

    Raises:
        Invalid: for a path that leads out of the model's folder, or over a link.
        NotFound: for a file that isn't there.
    """
    if subject.startswith(DIGEST):
        return {}
    folder = Path(subject).parent
    files = {}
    for name in external_files(Path(subject)):
        path = folder / name
        if _leads_over_link(folder, name):
            raise Invalid(
                f"{subject}: keeps its data in {name!r}, which can't be opened in the model's folder "
                f"({os.strerror(errno.ELOOP)}); links aren't followed",
                reason="BAD_PATH",
            )
        if not path.resolve().is_relative_to(folder.resolve()) or Path(name).is_absolute():
            raise Invalid(
                f"{subject}: keeps its data in {name!r}, outside of its own folder; move the file there and "
                "save the model again",
                reason="BAD_PATH",
            )
        if not path.exists():
            raise NotFound(f"{subject}: keeps its data in {name!r}, which isn't beside it", reason="NO_FILE")
        files[name] = upload(session, path)
    return files
