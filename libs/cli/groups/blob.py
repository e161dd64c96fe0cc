"""`isthmus blob`: content-addressed files."""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from libs.cli.blobs import upload
from libs.cli.files import put_at
from libs.cli.main import Group
from libs.cli.output import human_bytes
from libs.cli.session import Session, with_session
from libs.trust.digests import DigestingWriter


@click.group(cls=Group)
def blob() -> None:
    """Content-addressed files of the tenant."""


@blob.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@with_session
def put(session: Session, file: str) -> None:
    """Upload FILE, or go on with an upload that broke off."""
    stored = upload(session, Path(file))
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
    stub = blob_pb2_grpc.BlobServiceStub(session.channel)
    with put_at(Path(out), "--out", mode=0o644) as file:
        writer = DigestingWriter(file)
        for chunk in session.stream(stub.ReadBlob, blob_pb2.ReadBlobRequest(digest=digest), timeout_s=3600):
            writer.write(chunk.data)
        writer.check(digest, writer.size_bytes, "what arrived")
    values = {"digest": digest, "size_bytes": writer.size_bytes, "file": out}
    session.output.values(values, f"{out}: {human_bytes(writer.size_bytes)}")
