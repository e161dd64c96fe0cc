"""Whatever a caller sends gets a clear answer: never INTERNAL, never UNKNOWN, never a hang."""

import random
from collections.abc import Sequence

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from isthmus.deployer.v1 import task_pb2
from libs.common.identity import Identity
from libs.common.paging import encode_token
from services.deployer.access import ACCESS
from services.deployer.testing import GATEWAY_SERVICE, Client, Running, SimulatedDevice, user

TEXTS: Sequence[str] = (
    "",
    "x",
    "\0",
    "a\0b",
    "tenants/acme",
    "tenants/acme/tasks/genres",
    "tenants/acme/tasks/genres/versions/1.0.0",
    "tenants/acme/releases/r1",
    "tenants/acme/devices/d1",
    "tenants/acme/devices/../d1",
    "tenants/other",
    "genres",
    "1.0.0",
    "genres@1.0.0",
    "d1",
    "r1",
    "1",
    "sha256:" + "0" * 64,
    "0" * 64 + "-5",
    "0.1.0",
    "3.11",
    "isthmus.deployer.v1.TaskManifest",
    '{"eq": ["os", "linux"]}',
    '{"not": ' * 30,
    "ünï©ode 🚀 \u202e",
    "' OR 1=1 --",
    "x" * 5000,
    *(encode_token({key: 2**70}) for key in ("version", "release", "root", "audit", "task", "device")),
    *(encode_token({key: -1}) for key in ("version", "release", "root", "audit")),
    *(encode_token({key: "\0"}) for key in ("task", "device")),
)
BYTES = (b"", b"\0", b"x" * 32, b"x" * 64, b"\x0a\xff\xff\xff\xff\xff", b"y" * 70_000)
FLOATS = (0.0, -1.0, 0.001, 50.0, 100.0, 1e306, float("inf"), float("nan"))
# What lets a request get past the first checks, by field.
PLAUSIBLE: dict[str, Sequence[object]] = {
    "parent": ("tenants/acme", "tenants/acme/tasks/genres"),
    "name": (
        "tenants/acme/tasks/genres",
        "tenants/acme/tasks/genres/versions/1.0.0",
        "tenants/acme/releases/r1",
        "tenants/acme/devices/d1",
    ),
    "version": ("tenants/acme/tasks/genres/versions/1.0.0", "1.0.0"),
    "release": ("tenants/acme/releases/r1",),
    "task": ("genres",),
    "task_id": ("genres", "another"),
    "agent_version": ("0.1.0",),
    "python_version": ("3.11",),
    "profile": ("genres@1.0.0",),
    "digest": ("sha256:" + "0" * 64,),
    "upload_id": ("0" * 64 + "-5",),
    "policy_json": ("", '{"eq": ["os", "linux"]}'),
    "page_token": ("", *TEXTS[-12:]),
    "failure_reason": ("", "TIMEOUT"),
    "stage": (1, 5),
    "etag": ("", "1"),
}
_SIZES = {
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 1000, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 5, 2**63 - 1, 2**63, 2**64 - 1),
}


FORBIDDEN = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED})


def methods() -> list[MethodDescriptor]:
    pool = descriptor_pool.Default()
    return [
        pool.FindServiceByName(name.split("/")[1]).methods_by_name[name.split("/")[2]]
        for name in sorted(ACCESS)
    ]


def scalar(field: FieldDescriptor, rng: random.Random) -> object:
    if field.name in PLAUSIBLE and rng.random() < 0.8:
        return rng.choice(PLAUSIBLE[field.name])
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(BYTES if field.type == FieldDescriptor.TYPE_BYTES else TEXTS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, 6, 99))
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice(FLOATS)
        case kind:
            return rng.choice(_SIZES[kind])


def fill(message: Message, descriptor: Descriptor, rng: random.Random) -> None:
    for field in descriptor.fields:
        if rng.random() < 0.15:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(rng.randrange(3)):
                value[rng.choice(TEXTS)] = rng.choice(TEXTS)
        elif field.is_repeated:
            for _ in range(rng.randrange(4)):
                if field.message_type is not None:
                    fill(value.add(), field.message_type, rng)
                else:
                    value.append(scalar(field, rng))
        elif field.message_type is not None:
            fill(value, field.message_type, rng)
        else:
            setattr(message, field.name, scalar(field, rng))


@pytest.mark.parametrize("method", methods(), ids=lambda m: f"{m.containing_service.name}.{m.name}")
async def test_any_request_gets_a_clear_answer(
    running: Running, client: Client, method: MethodDescriptor
) -> None:
    await client.publish()
    device: SimulatedDevice = await client.enrol("d1")
    await client.release(release_id="r1")
    full = f"/{method.containing_service.full_name}/{method.name}"
    identity: Identity = user()
    if full in (
        "/isthmus.deployer.v1.PullService/Plan",
        "/isthmus.deployer.v1.PullService/Report",
        "/isthmus.deployer.v1.EnrolmentService/RenewCredential",
    ):
        identity = device.identity
    elif "PushIndex" in full:
        identity = GATEWAY_SERVICE
    channel = running.channel.acting_as(identity)
    request_class = message_factory.GetMessageClass(method.input_type)
    rng = random.Random(full)
    for _ in range(60):
        request = request_class()
        fill(request, method.input_type, rng)
        failed: grpc.aio.AioRpcError | None = None
        try:
            if method.server_streaming:
                stream = channel.unary_stream(full)(request.SerializeToString(), timeout=20)
                await stream.read()
                stream.cancel()
            else:
                await channel.unary_unary(full)(request.SerializeToString(), timeout=20)
        except grpc.aio.AioRpcError as error:
            failed = error
        if failed is not None:
            told = f"{failed.code()}: {failed.details()}\n{request}"
            assert failed.code() not in FORBIDDEN, told
            assert failed.details(), told
    # It still serves.
    await client.tasks.GetTask(task_pb2.GetTaskRequest(name="tenants/acme/tasks/genres"))
