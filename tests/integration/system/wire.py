"""Clients that speak to the gateway by hand: with any credentials, any bytes, any device key."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, device_pb2, device_pb2_grpc, manifest_pb2
from libs.common.clock import SystemClock
from libs.trust.digests import sha256_of
from services.device_agent.identity import DeviceKey
from tests.integration.system.world import Cloud, code_of

Metadata = tuple[tuple[str, str], ...]
UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


class Refusal(Exception):
    """How a call was refused."""

    def __init__(self, error: grpc.RpcError) -> None:
        assert isinstance(error, grpc.Call)
        self.code: grpc.StatusCode = code_of(error)
        self.text: str = error.details() or ""
        super().__init__(f"{self.code.name}: {self.text}")


def bearer(key: str) -> Metadata:
    """Return the credentials of a person or a program."""
    return (("authorization", f"Bearer {key.strip()}"),)


def call(address: str, method: str, request: bytes = b"", metadata: Metadata = ()) -> bytes:
    """Make a call of any shape with one request, on a connection of its own; return what came, joined.

    Raises:
        Refusal: when the call fails.
    """
    with grpc.insecure_channel(address, (*UNLIMITED, *OWN_CONNECTION)) as channel:
        # On the wire every call is a stream each way.
        start: Callable[..., Any] = channel.stream_stream(method)
        try:
            return b"".join(start(iter([request]), timeout=60, metadata=metadata))
        except grpc.RpcError as error:
            raise Refusal(error) from error


def attempt(address: str, method: str, request: bytes = b"", metadata: Metadata = ()) -> Refusal | None:
    """Return how a call is refused, or None when it is answered."""
    try:
        call(address, method, request, metadata)
    except Refusal as refused:
        return refused
    return None


def refusal(address: str, method: str, request: bytes = b"", metadata: Metadata = ()) -> Refusal:
    """Return how a call is refused; it must be."""
    found = attempt(address, method, request, metadata)
    assert found is not None, f"{method} was answered"
    return found


class Handset:
    """An enrolled device, without an agent."""

    def __init__(self, cloud: Cloud, token: str, device_id: str) -> None:
        self.name = f"tenants/{cloud.tenant}/devices/{device_id}"
        self.key = DeviceKey.load_or_create(cloud.home / f"{device_id}.key")
        request = device_pb2.EnrolRequest(
            token=token,
            device_id=device_id,
            public_key=self.key.public,
            proof=self.key.prove(token, device_id),
        )
        self.credential: str = (
            device_pb2_grpc.EnrolmentServiceStub(cloud.channel).Enrol(request, timeout=60).credential
        )

    @property
    def token(self) -> str:
        """A device token, good now."""
        return self.key.token(self.name, SystemClock().now().timestamp())

    @property
    def metadata(self) -> Metadata:
        """The device's credentials."""
        return (("authorization", f"Device {self.token}"), ("x-isthmus-credential", self.credential))


def upload(cloud: Cloud, content: bytes) -> manifest_pb2.BlobRef:
    """Upload a blob in chunks of a MiB."""
    blob = manifest_pb2.BlobRef(digest=sha256_of(content), size_bytes=len(content))
    stub = blob_pb2_grpc.BlobServiceStub(cloud.channel)
    begun = stub.BeginBlob(blob_pb2.BeginBlobRequest(blob=blob))
    for offset in range(0, 0 if begun.committed else len(content), 1 << 20):
        data = content[offset : offset + (1 << 20)]
        stub.WriteBlob(
            blob_pb2.WriteBlobRequest(upload_id=begun.upload_id, offset_bytes=offset, data=data), timeout=60
        )
    if not begun.committed:
        stub.CommitBlob(blob_pb2.CommitBlobRequest(upload_id=begun.upload_id), timeout=60)
    return blob


class Relay(grpc.GenericRpcHandler):
    """A man in the middle between an agent and the gateway, who keeps device sets and shows old ones again.

    Attributes:
        plans: every answer to a Plan, in order.
        replayed: the answer to give in place of the gateway's, if any.
    """

    PLAN = "/isthmus.deployer.v1.PullService/Plan"

    def __init__(self, target: str) -> None:
        self.plans: list[bytes] = []
        self.replayed: bytes | None = None
        self._channel = grpc.insecure_channel(target, OWN_CONNECTION)
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        """End."""
        self._channel.close()
        self._server.stop(None).wait()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Pass every call on."""
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._pass_on(details, requests, context)
        )

    def _pass_on(
        self, details: grpc.HandlerCallDetails, requests: Iterable[bytes], context: Any
    ) -> Iterator[bytes]:
        metadata = [(k, v) for k, v in details.invocation_metadata if not k.startswith(("grpc-", "user-"))]
        start: Callable[..., Any] = self._channel.stream_stream(details.method)
        passed = start(iter(requests), metadata=metadata, timeout=context.time_remaining())
        context.add_callback(passed.cancel)
        try:
            for response in passed:
                if details.method == self.PLAN:
                    self.plans.append(response)
                    response = self.replayed if self.replayed is not None else response
                yield response
            context.set_trailing_metadata(passed.trailing_metadata())
        except grpc.RpcError as error:
            context.set_trailing_metadata(passed.trailing_metadata() or ())
            context.abort(code_of(error), passed.details())


def rss(pid: int) -> int:
    """Return the memory that a process holds now, in bytes."""
    found: int = psutil.Process(pid).memory_info().rss
    return found


def peak_rss(pid: int) -> int:
    """Return the most memory that a process has held so far, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no VmHWM of process {pid}")
