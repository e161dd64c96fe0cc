"""Too much of everything through the real gateway: refused early, and nobody else suffers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from deploy.local.stack import Stack
from isthmus.client import connect
from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, manifest_pb2, task_pb2, task_pb2_grpc
from tests.integration.system.wire import (
    OWN_CONNECTION,
    UNLIMITED,
    bearer,
    call,
    peak_rss,
    refusal,
    rss,
    upload,
)
from tests.integration.system.world import Cloud, until

MIB = 1 << 20
INVALID = grpc.StatusCode.INVALID_ARGUMENT
TASKS, BLOBS = "/isthmus.deployer.v1.TaskService/", "/isthmus.deployer.v1.BlobService/"
OURS = task_pb2.ListTasksRequest(parent="tenants/ours").SerializeToString()


class Others:
    """Somebody else, who goes on calling all the while."""

    def __init__(self, stack: Stack, cloud: Cloud) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._channel = connect(stack.gateway, cloud.key, plaintext=True)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._channel.close()

    def _run(self) -> None:
        stub = task_pb2_grpc.TaskServiceStub(self._channel)
        while not self._stop.wait(0.02):
            try:
                stub.ListTasks(task_pb2.ListTasksRequest(parent="tenants/ours"), timeout=60)
                self.answered += 1
            except grpc.RpcError as error:
                self.failures.append(str(error))


def test_messages_of_100_mib_are_refused_and_take_no_memory(stack: Stack, cloud: Cloud) -> None:
    pid = stack.pid("gateway")
    huge = bytes(100 * MIB)
    requests = {
        TASKS + "CreateTask": task_pb2.CreateTaskRequest(
            parent="tenants/ours", task_id="huge", description="x" * len(huge)
        ),
        BLOBS + "WriteBlob": blob_pb2.WriteBlobRequest(upload_id="x", data=huge),
    }
    before = peak_rss(pid)
    with Others(stack, cloud) as others:
        for method, request in requests.items():
            refused = refusal(stack.gateway, method, request.SerializeToString(), bearer(cloud.key))
            assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            assert "larger than" in refused.text, refused
        # The same from a stream, and from somebody without a key.
        connecting = "/isthmus.tunnel.v1.TunnelService/Connect"
        assert refusal(stack.gateway, connecting, huge).code in (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNAUTHENTICATED,
        )
        seen = others.answered
        call(stack.gateway, TASKS + "ListTasks", OURS, bearer(cloud.key))
    assert others.failures == []
    assert seen > 0
    assert stack.pid("gateway") == pid
    assert peak_rss(pid) - before < 64 * MIB


@pytest.mark.parametrize(
    ("size", "code", "at_most"),
    [
        # Nothing that large goes through the gateway: gRPC doesn't even read it.
        (48 * MIB, grpc.StatusCode.RESOURCE_EXHAUSTED, 64 * MIB),
        # A tensor might be as large, so each is read before its service is known: what the eight at once
        # take on their way through gRPC, and not what all 32 would.
        (16 * MIB, INVALID, 8 * 6 * 16 * MIB),
    ],
)
def test_many_oversized_messages_at_once_take_no_memory_either(
    stack: Stack, cloud: Cloud, size: int, code: grpc.StatusCode, at_most: int
) -> None:
    pid = stack.pid("gateway")
    before = peak_rss(pid)
    request = blob_pb2.WriteBlobRequest(upload_id="x", data=bytes(size)).SerializeToString()
    with Others(stack, cloud) as others, ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda _: refusal(stack.gateway, BLOBS + "WriteBlob", request, bearer(cloud.key)).code,
                range(32),
            )
        )
    assert found == [code] * 32
    assert others.failures == []
    assert peak_rss(pid) - before < at_most


def test_a_page_or_metadata_beyond_the_limits_is_refused(stack: Stack, cloud: Cloud) -> None:
    key = bearer(cloud.key)
    request = task_pb2.ListTasksRequest(parent="tenants/ours", page_token="made up").SerializeToString()
    assert refusal(stack.gateway, TASKS + "ListTasks", request, key).code is INVALID
    much = (*key, ("x-much", "y" * 200_000))
    assert refusal(stack.gateway, TASKS + "ListTasks", OURS, much).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    call(stack.gateway, TASKS + "ListTasks", OURS, key)


@pytest.fixture(scope="module")
def big(cloud: Cloud) -> manifest_pb2.BlobRef:
    return upload(cloud, bytes(range(256)) * (32 * MIB // 256))


def test_slow_readers_hold_up_nobody_and_no_memory(
    stack: Stack, cloud: Cloud, big: manifest_pb2.BlobRef
) -> None:
    pids = [stack.pid("gateway"), stack.pid("deployer")]
    before = [rss(pid) for pid in pids]
    request = blob_pb2.ReadBlobRequest(digest=big.digest)
    channels = [grpc.insecure_channel(stack.gateway, (*UNLIMITED, *OWN_CONNECTION)) for _ in range(12)]
    try:
        reads = [
            blob_pb2_grpc.BlobServiceStub(channel).ReadBlob(request, metadata=bearer(cloud.key))
            for channel in channels
        ]
        # Each has begun and takes no more: the rest must wait at the sender, not in memory on the way.
        sizes = [len(next(read).data) for read in reads]
        with Others(stack, cloud) as others:
            until("others to be answered", lambda: others.answered > 50, lambda: others.failures)
        assert others.failures == []
        grown = [rss(pid) - old for pid, old in zip(pids, before, strict=True)]
        assert max(grown) < 96 * MIB, grown  # all of it would be 384 MiB
        # The slow ones get all of it in the end.
        assert [
            size + sum(len(part.data) for part in read)
            for size, read in zip(sizes[:2], reads[:2], strict=True)
        ] == [big.size_bytes] * 2
    finally:
        for channel in channels:
            channel.close()
    assert [stack.pid("gateway"), stack.pid("deployer")] == pids
