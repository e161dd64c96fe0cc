"""The HTTP port: blobs by digest, for devices and CDNs that would rather not speak gRPC.

`GET` and `HEAD /v1/blobs/sha256:<hex>` take the same credentials as gRPC, in headers of the same names, and
serve one range, validators and all, as RFC 9110 has it. Bytes flow as the client takes them; the deployer
says who sees what.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import grpc.aio
from aiohttp import web

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from libs.common.errors import Error, Exhausted, Internal, Invalid, NotFound, Precondition, Unavailable
from libs.common.names import shown
from libs.common.status import code_of, error_from_rpc
from services.gateway.domain.byte_range import Part, parse_range
from services.gateway.domain.callers import Caller, CallerAuthenticator
from services.gateway.http_log import http_log
from services.gateway.metrics import Metrics
from services.gateway.upstreams import Upstream
from services.gateway.visit import AUTHORIZATION, CREDENTIAL, Passport, Stamp

_log = logging.getLogger(__name__)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_STAT_TIMEOUT_S = 10.0
# Whoever downloads while the gateway stops goes on elsewhere, with a range.
_GRACE_S = 2.0
_HTTP_CODES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_downloads` at once, each of at most `max_download_s` seconds."""

    max_downloads: int
    max_download_s: float


class BlobPort:
    """Answers HTTP requests for blobs by asking the deployer's BlobService."""

    def __init__(
        self,
        callers: CallerAuthenticator,
        deployer: Upstream,
        passport: Passport,
        stamp: Stamp,
        metrics: Metrics,
        limits: Limits,
    ) -> None:
        self._callers = callers
        self._deployer = deployer
        self._blobs = blob_pb2_grpc.BlobServiceStub(deployer.channel)
        self._passport = passport
        self._stamp = stamp
        self._metrics = metrics
        self._limits = limits
        self._downloads = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer GET and HEAD for one blob.

        Raises:
            Error: as anything that answers a call may; the application turns it into JSON.
        """
        caller = await self._callers.authenticate(_one(request, AUTHORIZATION), _one(request, CREDENTIAL))
        digest = request.match_info["digest"]
        if not _DIGEST.fullmatch(digest):
            raise Invalid(
                f"{shown(digest)} isn't 'sha256:' and 64 lower-case hex digits",
                reason="BAD_DIGEST",
                metadata={"field": "digest"},
            )
        size = await self._size(caller, digest)
        etag = f'"{digest}"'
        headers = {
            "ETag": etag,
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, max-age=31536000, immutable",
            "Content-Type": "application/octet-stream",
        }
        if _matches(request.headers.get("If-None-Match"), etag):
            return web.Response(status=304, headers=headers)
        part: Part | None = None
        wanted = request.headers.get("Range") if request.method == "GET" else None
        # A range is only good for the very content that the client has the rest of.
        if wanted is not None and request.headers.get("If-Range", etag) == etag:
            part = parse_range(wanted, size)
            if part is not None and part.length == 0:
                raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
        response = web.StreamResponse(status=200 if part is None else 206, headers=headers)
        if part is None:
            part = Part(0, size)
        else:
            response.headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{size}"
        response.content_length = part.length
        if request.method == "HEAD" or part.length == 0:
            await response.prepare(request)
            await response.write_eof()
            return response
        await self._send(request, response, caller, digest, part)
        return response

    def _metadata(self, caller: Caller) -> tuple[tuple[str, str], ...]:
        return (self._passport.header(caller, self._deployer.name),)

    async def _size(self, caller: Caller, digest: str) -> int:
        try:
            stat = await self._blobs.StatBlob(
                blob_pb2.StatBlobRequest(digest=digest),
                metadata=self._metadata(caller),
                timeout=_STAT_TIMEOUT_S,
            )
        except grpc.aio.AioRpcError as error:
            raise self._explain(error) from None
        return int(stat.blob.size_bytes)

    def _explain(self, error: grpc.aio.AioRpcError) -> Error:
        return self._deployer.unreachable(error) or error_from_rpc(error)

    async def _send(
        self, request: web.Request, response: web.StreamResponse, caller: Caller, digest: str, part: Part
    ) -> None:
        if self._downloads >= self._limits.max_downloads:
            raise Exhausted(
                f"{self._downloads} downloads are running, which is this gateway's limit",
                reason="TOO_MANY_DOWNLOADS",
                retry_after_s=2.0,
            )
        self._downloads += 1
        call = self._blobs.ReadBlob(
            blob_pb2.ReadBlobRequest(digest=digest, offset_bytes=part.start, length_bytes=part.length),
            metadata=self._metadata(caller),
            timeout=self._limits.max_download_s,
        )
        try:
            left = part.length
            async with asyncio.timeout(self._limits.max_download_s):
                async for chunk in call:
                    if not response.prepared:  # only now is it known that there are bytes
                        await response.prepare(request)
                    left -= len(chunk.data)
                    if left < 0:
                        break
                    await response.write(chunk.data)
                    self._metrics.blob_bytes.inc(len(chunk.data))
            if left:
                raise Internal("the blob hasn't the size it should have", reason="BLOB_SIZE")
            await response.write_eof()
        except (Error, grpc.aio.AioRpcError, TimeoutError) as raised:
            error = self._explain(raised) if isinstance(raised, grpc.aio.AioRpcError) else raised
            if not response.prepared:
                raise error from None
            # The status is out already: only breaking off tells the client that the rest is missing.
            _log.info("download broken off: %s", error)
            if request.transport is not None:
                request.transport.abort()
        finally:
            call.cancel()
            self._downloads -= 1


def _one(request: web.Request, header: str) -> str | None:
    values = request.headers.getall(header, [])
    if len(values) > 1:
        raise Invalid(f"the header {header} comes more than once", reason="MALFORMED_CREDENTIALS")
    return values[0] if values else None


def _matches(header: str | None, etag: str) -> bool:
    """Say whether an If-None-Match header names the entity tag (weak comparison)."""
    if header is None:
        return False
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


def _answer(error: Error) -> web.Response:
    code = code_of(error).name
    status = _HTTP_CODES.get(code, 500)
    response = web.json_response(
        {"code": code, "reason": error.reason, "message": error.message}, status=status
    )
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return response


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_application(
    port: BlobPort, stamp: Stamp, metrics: Metrics, health: Callable[[], Mapping[str, bool]]
) -> web.Application:
    """Return the HTTP application; `health` is what /healthz says: by service, "" for the whole."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except Error as error:
            response = _answer(error)
        except TimeoutError:
            response = _answer(Unavailable("the deployer took too long", reason="TIMEOUT", retry_after_s=1.0))
        except web.HTTPRequestRangeNotSatisfiable as error:
            response = _answer(Invalid("the range lies outside of the blob", reason="BAD_RANGE"))
            response.set_status(416)
            response.headers.update({"Content-Range": error.headers["Content-Range"]})
        except web.HTTPNotFound:
            response = _answer(NotFound("there is nothing here; blobs are at /v1/blobs/sha256:<hex>"))
        except web.HTTPMethodNotAllowed as error:
            response = _answer(Invalid(f"{request.method} isn't served here", reason="METHOD_NOT_ALLOWED"))
            response.set_status(405)
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        metrics.http(request.method, response.status)
        return response

    async def stamp_time(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(stamp.time())
        response.headers["Server"] = "isthmus"  # not which versions of what are inside

    async def healthz(request: web.Request) -> web.Response:
        found = {name: "SERVING" if well else "NOT_SERVING" for name, well in health().items()}
        status = found.pop("")
        return web.json_response(
            {"status": status, "services": found}, status=200 if status == "SERVING" else 503
        )

    application = web.Application(middlewares=[answer])
    application.on_response_prepare.append(stamp_time)
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/v1/blobs/{digest}", port.handle)
    return application


async def start_http(
    application: web.Application, host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[web.AppRunner, int]:
    """Serve the application; return what stops it and the port it got.

    Raises:
        Precondition: when the port is taken.
    """
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=http_log(),
        handler_cancellation=True,
        shutdown_timeout=_GRACE_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise Precondition(
            f"http_port: can't listen on {host}:{port} ({error.strerror}); free it or choose another",
            reason="PORT_TAKEN",
        ) from error
    return runner, runner.addresses[0][1]
