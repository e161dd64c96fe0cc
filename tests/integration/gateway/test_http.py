"""Blobs over HTTP: ranges, validators, credentials, errors; from a fake deployer over real gRPC."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import aiohttp
import grpc
import pytest
from aiohttp.http_exceptions import BadHttpMessage

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, manifest_pb2
from libs.common.clock import SystemClock
from services.gateway.http_log import http_log
from services.gateway.testing import (
    deployer_key,
    eventually,
    gateway_config,
    make_device,
    make_key,
    running_gateway,
    serving,
    store_with,
    take_empty_snapshot,
)

DATA = bytes(range(256)) * 4096  # 1 MiB
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
EMPTY = f"sha256:{hashlib.sha256(b'').hexdigest()}"
ETAG = f'"{DIGEST}"'
KEY, TEXT = make_key()
ME = {"Authorization": f"Bearer {TEXT}"}
CHUNK = 64 * 1024


class FakeBlobs(blob_pb2_grpc.BlobServiceServicer):
    """A deployer with two blobs. `broken` makes reads fail in the middle; `gate` holds them back."""

    def __init__(self):
        self.blobs = {DIGEST: DATA, EMPTY: b""}
        self.broken = False
        self.sent = 0
        self.ended = asyncio.Event()

    def add_to(self, server):
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self, server)

    async def StatBlob(self, request, context):  # noqa: N802
        assert "x-isthmus-identity" in dict(context.invocation_metadata())
        if request.digest not in self.blobs:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no blob {request.digest}", (("x", "y"),))
        size = len(self.blobs[request.digest])
        return blob_pb2.StatBlobResponse(blob=manifest_pb2.BlobRef(digest=request.digest, size_bytes=size))

    async def ReadBlob(self, request, context):  # noqa: N802
        data = self.blobs[request.digest]
        end = request.offset_bytes + (request.length_bytes or len(data))
        try:
            for start in range(request.offset_bytes, end, CHUNK):
                if self.broken and start:
                    await context.abort(grpc.StatusCode.INTERNAL, "disk", (("x", "y"),))
                self.sent += 1
                yield blob_pb2.ReadBlobResponse(
                    data=data[start : min(start + CHUNK, end)], size_bytes=len(data)
                )
        finally:
            self.ended.set()


@asynccontextmanager
async def door(folder, *handlers, **settings):
    async with serving(*handlers) as port:
        config = gateway_config(folder, upstreams=(f"deployer=127.0.0.1:{port}",), **settings)
        async with (
            running_gateway(config, await store_with(KEY)) as (made, _),
            aiohttp.ClientSession(f"http://127.0.0.1:{made.http_port}") as session,
        ):
            yield made, session


RANGES = [
    # Range, status, first, length
    (None, 200, 0, len(DATA)),
    ("bytes=0-0", 206, 0, 1),
    ("bytes=0-99", 206, 0, 100),
    ("bytes=100-", 206, 100, len(DATA) - 100),
    ("bytes=-5", 206, len(DATA) - 5, 5),
    (f"bytes=-{2 * len(DATA)}", 206, 0, len(DATA)),
    (f"bytes={len(DATA) - 1}-", 206, len(DATA) - 1, 1),
    (f"bytes=10-{2 * len(DATA)}", 206, 10, len(DATA) - 10),
    ("BYTES = 1-2", 206, 1, 2),
    # What isn't one byte range is served whole.
    ("bytes=0-1,5-6", 200, 0, len(DATA)),
    ("bytes=5-1", 200, 0, len(DATA)),
    ("bytes=-", 200, 0, len(DATA)),
    ("bytes=a-b", 200, 0, len(DATA)),
    ("lines=1-2", 200, 0, len(DATA)),
    # What lies outside isn't served.
    (f"bytes={len(DATA)}-", 416, 0, 0),
    ("bytes=99999999999999999-", 416, 0, 0),
    ("bytes=-0", 416, 0, 0),
]


async def test_ranges(tmp_path):
    async with door(tmp_path, FakeBlobs()) as (_, session):
        for wanted, status, first, length in RANGES:
            headers = ME if wanted is None else {**ME, "Range": wanted}
            async with session.get(f"/v1/blobs/{DIGEST}", headers=headers) as response:
                body = await response.read()
                assert response.status == status, wanted
                assert float(response.headers["x-isthmus-time"])
                if status == 416:
                    assert response.headers["Content-Range"] == f"bytes */{len(DATA)}"
                    assert (await response.json())["reason"] == "BAD_RANGE"
                    continue
                assert body == DATA[first : first + length], wanted
                assert response.headers["ETag"] == ETAG
                assert response.headers["Accept-Ranges"] == "bytes"
                if status == 206:
                    last = first + length - 1
                    assert response.headers["Content-Range"] == f"bytes {first}-{last}/{len(DATA)}"


async def test_head_tells_the_size_without_the_bytes(tmp_path):
    blobs = FakeBlobs()
    async with door(tmp_path, blobs) as (_, session):
        async with session.head(f"/v1/blobs/{DIGEST}", headers={**ME, "Range": "bytes=0-1"}) as response:
            assert (response.status, response.headers["Content-Length"]) == (200, str(len(DATA)))
            assert response.headers["ETag"] == ETAG
        assert blobs.sent == 0


async def test_an_empty_blob(tmp_path):
    async with door(tmp_path, FakeBlobs()) as (_, session):
        async with session.get(f"/v1/blobs/{EMPTY}", headers=ME) as response:
            assert (response.status, await response.read()) == (200, b"")
        async with session.get(f"/v1/blobs/{EMPTY}", headers={**ME, "Range": "bytes=0-"}) as response:
            assert response.status == 416


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-None-Match": ETAG}, 304),
        ({"If-None-Match": f'"other", W/{ETAG}'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"other"'}, 200),
        ({"If-None-Match": ETAG, "Range": "bytes=0-1"}, 304),
        ({"If-Range": ETAG, "Range": "bytes=0-1"}, 206),
        ({"If-Range": '"other"', "Range": "bytes=0-1"}, 200),
        ({"If-Range": f"W/{ETAG}", "Range": "bytes=0-1"}, 200),
        ({"If-Range": "Wed, 21 Oct 2026 07:28:00 GMT", "Range": "bytes=0-1"}, 200),
    ],
)
async def test_validators(tmp_path, headers, status):
    async with (
        door(tmp_path, FakeBlobs()) as (_, session),
        session.get(f"/v1/blobs/{DIGEST}", headers={**ME, **headers}) as response,
    ):
        assert response.status == status
        assert len(await response.read()) == {304: 0, 206: 2, 200: len(DATA)}[status]


@pytest.mark.parametrize(
    ("path", "headers", "status", "code", "says"),
    [
        (f"/v1/blobs/{DIGEST}", {}, 401, "UNAUTHENTICATED", "isk_"),
        (f"/v1/blobs/{DIGEST}", {"Authorization": "Bearer nope"}, 401, "UNAUTHENTICATED", "malformed"),
        ("/v1/blobs/sha256:12", ME, 400, "INVALID_ARGUMENT", "64 lower-case hex"),
        (f"/v1/blobs/{DIGEST.upper()}", ME, 400, "INVALID_ARGUMENT", "64 lower-case hex"),
        (f"/v1/blobs/sha256:{'0' * 64}", ME, 404, "NOT_FOUND", "no blob"),
        ("/v2/blobs", ME, 404, "NOT_FOUND", "/v1/blobs/"),
    ],
)
async def test_errors_are_json(tmp_path, path, headers, status, code, says):
    async with (
        door(tmp_path, FakeBlobs()) as (_, session),
        session.get(path, headers=headers) as response,
    ):
        assert response.status == status
        error = await response.json()
        assert set(error) == {"code", "reason", "message"}
        assert error["code"] == code
        assert says in error["message"]
        assert ("WWW-Authenticate" in response.headers) == (status == 401)


async def test_other_methods_are_refused(tmp_path):
    async with (
        door(tmp_path, FakeBlobs()) as (_, session),
        session.put(f"/v1/blobs/{DIGEST}", headers=ME, data=b"x") as response,
    ):
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"


async def test_a_device_comes_with_its_token(tmp_path):
    device = make_device("tenants/default/devices/d1", deployer_key(tmp_path))
    headers = dict(device.metadata(SystemClock().now()))
    headers["Range"] = "bytes=7-8"
    async with door(tmp_path, FakeBlobs()) as (made, session):
        async with session.get(f"/v1/blobs/{DIGEST}", headers=headers) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert (await response.json())["reason"] == "PUSH_INDEX_NOT_READY"
        take_empty_snapshot(made)
        async with session.get(f"/v1/blobs/{DIGEST}", headers=headers) as response:
            assert (response.status, await response.read()) == (206, DATA[7:9])


async def test_health_needs_no_key(tmp_path):
    async with door(tmp_path, FakeBlobs()) as (made, session):
        for state in ("NOT_SERVING", "SERVING"):
            services = {"isthmus.gateway.v1.PushService": state}
            async with session.get("/healthz") as response:
                assert response.status == 200
                assert await response.json() == {"status": "SERVING", "services": services}
            take_empty_snapshot(made)


async def test_a_download_that_breaks_is_seen_to_be_broken(tmp_path):
    blobs = FakeBlobs()
    blobs.broken = True
    async with door(tmp_path, blobs) as (_, session):
        async with session.get(f"/v1/blobs/{DIGEST}", headers=ME) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        blobs.broken = False
        async with session.get(f"/v1/blobs/{DIGEST}", headers=ME) as response:
            assert await response.read() == DATA


async def test_without_the_deployer_the_client_is_asked_to_come_back(tmp_path):
    async with running_gateway(
        gateway_config(tmp_path, upstreams=("deployer=127.0.0.1:9",)), await store_with(KEY)
    ) as (made, _):
        url = f"http://127.0.0.1:{made.http_port}/v1/blobs/{DIGEST}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=ME) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert "'deployer'" in (await response.json())["message"]


async def test_a_slow_client_holds_the_deployer_back_and_one_that_leaves_ends_the_read(tmp_path):
    blobs = FakeBlobs()
    huge = bytes(64 * 1024 * 1024)
    digest = f"sha256:{hashlib.sha256(huge).hexdigest()}"
    blobs.blobs[digest] = huge
    async with door(tmp_path, blobs, max_downloads=1) as (made, session):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.http_port)
        writer.write(
            f"GET /v1/blobs/{digest} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TEXT}\r\n\r\n".encode()
        )
        assert (await reader.readline()).split()[1] == b"200"
        before = -1
        while blobs.sent != before:  # until it stands still
            before = blobs.sent
            await asyncio.sleep(0.3)
        assert blobs.sent * CHUNK < len(huge) / 2
        # Meanwhile the place is taken.
        async with session.get(f"/v1/blobs/{DIGEST}", headers=ME) as response:
            assert response.status == 429
        writer.transport.abort()
        await asyncio.wait_for(blobs.ended.wait(), 30)

        async def free():
            async with session.get(f"/v1/blobs/{DIGEST}", headers=ME) as response:
                return response.status == 200

        async with asyncio.timeout(30):
            while not await free():  # noqa: ASYNC110 (only asking shows it)
                await asyncio.sleep(0.05)


async def test_requests_are_counted_by_code(tmp_path):
    async with door(tmp_path, FakeBlobs()) as (made, session):
        async with session.get("/nowhere"):
            pass
        registry = made.server.telemetry.registry
        labels = {"method": "GET", "code": "404"}
        await eventually(
            lambda: registry.get_sample_value("isthmus_gateway_http_requests_total", labels) == 1
        )


GRPC_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
NOT_HTTP = {
    "gRPC": GRPC_PREFACE,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 64 + b"\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n: nothing\r\n\r\n",
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "rubbish after a request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\x00\x01\r\n\r\n",
}


@pytest.mark.parametrize("sent", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_bytes_that_are_no_http_are_answered_with_400_and_no_traceback(tmp_path, caplog, sent):
    caplog.set_level("INFO")
    async with door(tmp_path, FakeBlobs()) as (made, session):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.http_port)
        writer.write(sent)
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
        assert answer.rpartition(b"HTTP/1.")[2][1:].startswith(b" 400 ")
        async with session.get("/healthz") as response:  # and others go on
            assert response.status == 200
    told = [record for record in caplog.records if record.name == "isthmus.gateway.http"]
    for record in told:
        assert (record.levelname, record.exc_info) == ("INFO", None)
        assert len(record.getMessage()) < 300
    # gRPC's own poller may tell of a read that would block, when several event loops share it.
    ours = [record for record in caplog.records if "PollerCompletionQueue" not in record.getMessage()]
    assert not [record for record in ours if record.levelname in ("WARNING", "ERROR")]


async def test_a_fault_of_the_gateways_own_keeps_its_traceback(caplog):
    caplog.set_level("INFO")
    log = http_log()
    fault = ValueError("ours")
    log.exception("Unhandled exception", exc_info=fault)
    log.exception("Error handling request from %s", "x", exc_info=BadHttpMessage("a\nb" * 1000))
    log.debug("too much")
    ours, theirs = caplog.records
    assert (ours.levelname, ours.exc_info[1], ours.getMessage()) == ("ERROR", fault, "Unhandled exception")
    assert (theirs.levelname, theirs.exc_info) == ("INFO", None)
    assert "\n" not in theirs.getMessage()
