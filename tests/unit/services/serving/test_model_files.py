"""Files come once, stay while they are held, and go when nobody needs them."""

import asyncio
from pathlib import Path

from libs.common.blobs import BlobRef
from services.serving.model_files import ModelFiles

CONTENT = b"a model"
REF = BlobRef.of(CONTENT)


class Blobs:
    def __init__(self) -> None:
        self.downloads = 0

    async def check(self, tenant: str, ref: BlobRef) -> None:
        """Not asked here."""

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        self.downloads += 1
        await asyncio.to_thread(path.write_bytes, CONTENT)

    async def pin(self, tenant: str, ref: BlobRef, resource: str) -> None:
        """Not asked here."""

    async def unpin(self, tenant: str, resource: str) -> None:
        """Not asked here."""


async def test_a_file_comes_once_and_goes_when_nobody_holds_or_needs_it(tmp_path: Path) -> None:
    blobs = Blobs()
    files = ModelFiles(tmp_path, blobs)
    for _ in range(2):
        async with files.held("acme", REF) as path:
            assert path.read_bytes() == CONTENT
            await files.keep_only(set())
            assert path.exists()
    assert blobs.downloads == 1
    await files.keep_only({REF.digest})
    assert path.exists()
    await files.keep_only(set())
    assert not path.exists()


async def test_one_who_comes_while_a_file_is_removed_gets_it_all_the_same(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, Blobs())
    async with files.held("acme", REF):
        pass

    async def reads() -> bytes:
        async with files.held("acme", REF) as path:
            await asyncio.sleep(0)
            return path.read_bytes()

    # Whichever is first at each step, what is held is there.
    for _ in range(20):
        _, *found = await asyncio.gather(files.keep_only(set()), reads(), reads())
        assert found == [CONTENT, CONTENT]
