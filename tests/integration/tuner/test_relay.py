"""What instances get of the tuner: the file that they try, and nothing else."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import ServiceIdentity, create_channel
from libs.common.clock import SystemClock
from libs.common.errors import Forbidden, NotFound
from libs.common.identity import IdentityIssuer
from libs.common.testing import running_server
from services.tuner.relay import ACCESS, Relay


@pytest.fixture
async def world(tmp_path):
    keys = {name: Ed25519PrivateKey.generate() for name in ("serving", "engine")}
    trusted = {name: key.public_key() for name, key in keys.items()}
    relay = Relay()
    async with running_server(relay, audience="deployer", access=ACCESS, trusted=trusted) as door:

        def client(name):
            issuer = IdentityIssuer(name, keys[name], SystemClock())
            return create_channel(door.target, identity=ServiceIdentity(issuer, "deployer"))

        async with client("serving") as serving, client("engine") as engine:
            yield relay, BlobClient(serving), BlobClient(engine), tmp_path


@pytest.mark.parametrize("size", [0, 1, 3 * 1024 * 1024 + 7])
async def test_an_instance_gets_the_file_that_is_offered_while_it_is(world, size):
    relay, instance, stranger, folder = world
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    path, ref = folder / "model.onnx", BlobRef.of(content)
    path.write_bytes(content)
    with relay.offering(ref, path):
        assert await instance.stat(ref.digest) == ref
        assert await instance.read(ref, size) == content
        with relay.offering(ref, path):
            pass
        assert relay.offers(path), "others still try it"
        with pytest.raises(Forbidden):
            await stranger.read(ref, size)
        with pytest.raises(Forbidden):
            await instance.pin(ref, "tenants/acme/models/m/versions/1")
        with pytest.raises(Forbidden):
            await instance.upload(b"anything")
    assert not relay.offers(path)
    with pytest.raises(NotFound):
        await instance.read(ref, size)
