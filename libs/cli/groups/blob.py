"""`isthmus blob`: content-addressed files."""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from libs.cli import blobs
from libs.cli.files import check_target
from libs.cli.main import Group
from libs.cli.output import human_bytes
from libs.cli.session import Session, with_session


@click.group(cls=Group)
def blob() -> None:
    """Content-addressed files of the tenant."""


@blob.command()
@click.argument("file", type=click.Path(dir_okay=False))
@with_session
def put(session: Session, file: str) -> None:
    """Upload FILE, or go on with an upload that broke off."""
    stored = blobs.upload(session, Path(file))
    session.output.message(stored, [("digest", stored.digest), ("size", human_bytes(stored.size_bytes))])


@blob.command()
@click.argument("digest")
@with_session
def stat(session: Session, digest: str) -> None:
    """Say whether the tenant has DIGEST, and how large it is."""
    stub = blob_pb2_grpc.BlobServiceStub(session.channel)
    found = session.call(stub.StatBlob, blob_pb2.StatBlobRequest(digest=digest))
    session.output.message(
        found,
        [
            ("digest", found.blob.digest),
            ("size", human_bytes(found.blob.size_bytes)),
            ("pins", found.pin_count),
        ],
    )


@blob.command()
@click.argument("digest")
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="File to write.")
@with_session
def get(session: Session, digest: str, out: str) -> None:
    """Download DIGEST and check it; the file appears only when it is whole."""
    check_target(Path(out), "--out")
    found = blobs.stat(session, digest)
    blobs.download(session, found, Path(out), "--out")
    values = {"digest": found.digest, "size_bytes": found.size_bytes, "file": out}
    session.output.values(values, f"{out}: {human_bytes(found.size_bytes)}")
