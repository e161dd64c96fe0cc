"""For tests: a deployer in this process, and clients of it, be it here or in a process of its own."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry

from isthmus.deployer.v1 import (
    audit_pb2,
    audit_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    manifest_pb2,
    push_index_pb2,
    push_index_pb2_grpc,
    release_pb2,
    release_pb2_grpc,
    task_pb2,
    task_pb2_grpc,
    trust_service_pb2,
    trust_service_pb2_grpc,
)
from libs.common.client import Channel
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Error
from libs.common.identity import GATEWAY, IDENTITY_HEADER, Identity, IdentityIssuer
from libs.common.rand import Randomness, SystemRandomness
from libs.common.sql import open_database
from libs.common.status import rpc_errors
from libs.common.testing import ServerChannel, running_server
from libs.task.testing import SCRIPT, blob_ref, make_manifest
from libs.trust.keys import SigningKey, public_from_raw
from libs.trust.signing import RoleKeys
from libs.trust.testing import Authority, fake_key
from services.deployer.access import ACCESS
from services.deployer.app import MIGRATIONS, NAME, Deployer, build
from services.deployer.blob_files import BlobFiles
from services.deployer.config import DeployerConfig
from services.deployer.domain.blobs import PINNERS, Files
from services.deployer.domain.preflight import Simulator
from services.deployer.metrics import Metrics
from services.deployer.notary import KeyNotary
from services.deployer.store import Store
from services.deployer.stores.sql import SqlStore
from services.deployer.testing_devices import DONE as DONE
from services.deployer.testing_devices import ActingAs, SimulatedDevice
from services.deployer.testing_devices import Stage as Stage
from services.deployer.testing_devices import enrol_request as enrol_request

IDENTITY_KEY = Ed25519PrivateKey.from_private_bytes(b"deployer's identity, known to all"[:32])
KEEPER_KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()) for name in PINNERS
}
"""Of the services that keep files for tenants; `running_deployer` believes them."""
GATEWAY_SERVICE = Identity("", GATEWAY, "service", frozenset(), GATEWAY)


def user(tenant: str = "acme", *scopes: str) -> Identity:
    """Return a user of a tenant, who may do everything unless told otherwise."""
    return Identity(tenant, f"tenants/{tenant}/keys/test", "user", frozenset(scopes or ("*",)), GATEWAY)


async def sql_store(folder: Path) -> SqlStore:
    """Return a new store in a SQLite file, migrated as it would be at the start."""
    return SqlStore(await open_database(f"sqlite:///{folder}/deployer.db", script_location=MIGRATIONS))


def make_notary(randomness: Randomness | None = None, *keys: SigningKey) -> KeyNotary:
    """Return a notary whose keys everybody knows."""
    return KeyNotary(
        keys or (fake_key("deployer"),),
        IDENTITY_KEY,
        randomness or SystemRandomness(),
        credential_ttl=timedelta(days=30),
    )


@dataclass(frozen=True, slots=True)
class Running:
    """A deployer that serves."""

    deployer: Deployer
    channel: ServerChannel
    metrics: CollectorRegistry
    clock: Clock

    def keeper(self, service: str, resource: str) -> Channel:
        """Return a channel on which a service that keeps files acts for `resource` of some tenant."""
        issuer = IdentityIssuer(service, KEEPER_KEYS[service], self.clock)
        return self.channel.anonymous().with_metadata(
            lambda *_: ((IDENTITY_HEADER, issuer.mint_own(NAME, resource)),)
        )

    def client(self, tenant: str = "acme", *scopes: str) -> "Client":
        """Return a client that calls as a user of a tenant."""
        return Client(self.channel.acting_as, tenant, user(tenant, *scopes))


@asynccontextmanager
async def running_deployer(
    folder: Path,
    *,
    store: Store | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
    notary: KeyNotary | None = None,
    randomness: Randomness | None = None,
    config: DeployerConfig | None = None,
    simulator: Simulator | None = None,
    trusted: Mapping[str, Ed25519PublicKey] | None = None,
) -> AsyncIterator[Running]:
    """Serve a deployer out of `folder` on a free port, loops and all; it believes `trusted` services too."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    config = config or DeployerConfig(port=0, metrics_port=-1, identity_trust_dir=folder)
    store = store or await sql_store(folder)
    registry = CollectorRegistry()
    deployer = build(
        config,
        store,
        files or BlobFiles(folder),
        notary or make_notary(randomness),
        Metrics(registry),
        clock,
        randomness,
        simulator,
    )
    try:
        async with (
            running_server(
                *deployer.services,
                access=ACCESS,
                audience=NAME,
                clock=clock,
                config=config,
                trusted={name: key.public_key() for name, key in KEEPER_KEYS.items()} | dict(trusted or {}),
            ) as channel,
            deployer.running(),
        ):
            yield Running(deployer, channel, registry, clock)
    finally:
        await store.close()


class Client:
    """What a tenant's people and programs do, in few words."""

    def __init__(self, acting_as: ActingAs, tenant: str, identity: Identity | None = None) -> None:
        """Call as `identity`; a user who may do everything unless told otherwise."""
        self.acting_as = acting_as
        self.tenant = tenant
        self.parent = f"tenants/{tenant}"
        self.authority = Authority(tenant)
        channel = acting_as(identity or user(tenant))
        self.tasks = task_pb2_grpc.TaskServiceStub(channel)
        self.blobs = blob_pb2_grpc.BlobServiceStub(channel)
        self.trust = trust_service_pb2_grpc.TrustServiceStub(channel)
        self.devices = device_pb2_grpc.DeviceServiceStub(channel)
        self.releases = release_pb2_grpc.ReleaseServiceStub(channel)
        self.audit = audit_pb2_grpc.AuditServiceStub(channel)

    async def install_root(self, now: datetime | None = None) -> None:
        """Install the first root, made of the deployer's own keys and well-known others."""
        keys = await self.trust.GetDeployerKeys(trust_service_pb2.GetDeployerKeysRequest())
        self.authority = Authority(self.tenant, now or datetime.now(UTC) - timedelta(days=1))
        root = replace(
            self.authority.root, deployer=RoleKeys.of(public_from_raw(key.public_key) for key in keys.keys)
        )
        await self.trust.InstallRoot(
            trust_service_pb2.InstallRootRequest(parent=self.parent, root=root.sign(self.authority.root_keys))
        )

    async def upload(self, content: bytes) -> manifest_pb2.BlobRef:
        """Upload a file as a client should: begin, write from the answered offset, commit."""
        ref = blob_ref(content)
        begun = await self.blobs.BeginBlob(blob_pb2.BeginBlobRequest(blob=ref))
        if begun.committed:
            return ref
        offset = begun.offset_bytes
        while offset < len(content):
            data = content[offset : offset + 256 * 1024]
            written = await self.blobs.WriteBlob(
                blob_pb2.WriteBlobRequest(upload_id=begun.upload_id, offset_bytes=offset, data=data)
            )
            offset = written.offset_bytes
        await self.blobs.CommitBlob(blob_pb2.CommitBlobRequest(upload_id=begun.upload_id))
        return ref

    async def read(self, digest: str, offset: int = 0, length: int = 0) -> bytes:
        """Read a blob."""
        request = blob_pb2.ReadBlobRequest(digest=digest, offset_bytes=offset, length_bytes=length)
        return b"".join([chunk.data async for chunk in self.blobs.ReadBlob(request)])

    async def create_task(self, task: str = "genres") -> None:
        """Make a task."""
        await self.tasks.CreateTask(task_pb2.CreateTaskRequest(parent=self.parent, task_id=task))

    async def publish(
        self, task: str = "genres", version: str = "1.0.0", **change: object
    ) -> task_pb2.Version:
        """Upload the script of a small task and publish a version of it; `change` sets manifest fields."""
        await self.upload(SCRIPT)
        manifest = make_manifest(task, version)
        for name, value in change.items():
            if isinstance(value, str):
                setattr(manifest, name, value)
            else:
                getattr(manifest, name).MergeFrom(value)
        return await self.publish_manifest(manifest)

    async def publish_manifest(
        self,
        manifest: manifest_pb2.TaskManifest,
        *,
        validate_only: bool = False,
        events: manifest_pb2.BlobRef | None = None,
        timeout_s: float | None = None,
    ) -> task_pb2.Version:
        """Publish a manifest whose files are there."""
        answer = await self.tasks.PublishVersion(
            task_pb2.PublishVersionRequest(
                parent=f"{self.parent}/tasks/{manifest.task}",
                manifest=self.authority.manifest(manifest),
                validate_only=validate_only,
                events=events,
            ),
            timeout=timeout_s,
        )
        return answer.version

    async def release(
        self,
        version: str = "1.0.0",
        *,
        task: str = "genres",
        release_id: str = "",
        steps: Sequence[float] = (),
        policy: str = "",
        soak_s: int = 0,
        timeout_s: int = 0,
        validate_only: bool = False,
        **gate: float,
    ) -> release_pb2.Release:
        """Start a release."""
        message = release_pb2.Gate(
            soak_time=Duration(seconds=soak_s), step_timeout=Duration(seconds=timeout_s)
        )
        for name, value in gate.items():
            setattr(message, name, int(value) if name == "min_report_count" else value)
        answer = await self.releases.CreateRelease(
            release_pb2.CreateReleaseRequest(
                parent=self.parent,
                release_id=release_id,
                version=f"{self.parent}/tasks/{task}/versions/{version}",
                policy_json=policy,
                steps_percent=steps,
                gate=message,
                validate_only=validate_only,
            )
        )
        return answer.release

    async def get_release(self, name: str) -> release_pb2.Release:
        """Read a release."""
        return (await self.releases.GetRelease(release_pb2.GetReleaseRequest(name=name))).release

    async def release_when(
        self, name: str, condition: Callable[[release_pb2.Release], bool], *, within_s: float = 30.0
    ) -> release_pb2.Release:
        """Watch a release until a condition holds; TimeoutError, or AssertionError when it ends first."""
        async with asyncio.timeout(within_s):
            call = self.releases.WatchRelease(
                release_pb2.WatchReleaseRequest(name=name), timeout=within_s + 5
            )
            async for answer in call:
                if condition(answer.release):
                    call.cancel()
                    return answer.release
        raise AssertionError(f"{name} ended before: {await self.get_release(name)}")

    async def token(self, use_count: int = 1000, **attributes: str) -> str:
        """Make an enrolment token."""
        answer = await self.devices.CreateEnrolmentToken(
            device_pb2.CreateEnrolmentTokenRequest(
                parent=self.parent, attributes=attributes, use_count=use_count
            )
        )
        return answer.token

    async def enrol(self, device_id: str, token: str = "", **attributes: str) -> "SimulatedDevice":
        """Enrol a device and return it."""
        device = SimulatedDevice(self.acting_as, self.tenant, device_id)
        await device.enrol(token or await self.token(), attributes)
        return device

    async def enrol_many(self, count: int, **attributes: str) -> list["SimulatedDevice"]:
        """Enrol devices d0, d1 and so on."""
        token = await self.token(count)
        return [await self.enrol(f"d{i}", token, **attributes) for i in range(count)]

    async def actions(self, resource: str = "") -> list[tuple[str, str]]:
        """Return the audit, oldest first: (actor, action)."""
        return [(entry.actor, entry.action) for entry in await self.audited(resource)]

    async def audited(self, resource: str = "") -> list[audit_pb2.AuditEntry]:
        """Return the audit, oldest first."""
        answer = await self.audit.ListAuditEntries(
            audit_pb2.ListAuditEntriesRequest(parent=self.parent, resource=resource, page_size=1000)
        )
        return list(reversed(answer.entries))


def index_stub(acting_as: ActingAs) -> "push_index_pb2_grpc.PushIndexServiceAsyncStub":
    """Return the push index's source, called as the gateway."""
    return push_index_pb2_grpc.PushIndexServiceStub(acting_as(GATEWAY_SERVICE))


class Index:
    """What a gateway makes of the push index's changes."""

    def __init__(self) -> None:
        self.revision = 0
        self.digests: dict[str, bytes] = {}
        self.revoked: set[str] = set()

    def apply(self, batch: push_index_pb2.WatchResponse) -> None:
        """Take a batch in."""
        self.revision = batch.revision or self.revision
        for change in batch.changes:
            if change.revoked:
                self.revoked.add(change.device)
            if change.wanted_digest:
                self.digests[change.device] = change.wanted_digest
            else:
                self.digests.pop(change.device, None)


@contextmanager
def refused(kind: type[Error], match: str = "", *, reason: str = "") -> Iterator[list[Error]]:
    """Expect a call inside the block to be refused; the list holds the error afterwards.

    Raises:
        AssertionError: when it isn't, or by another kind, text or reason.
    """
    caught: list[Error] = []
    try:
        with rpc_errors():
            yield caught
    except Error as error:
        caught.append(error)
    assert caught, f"expected {kind.__name__}, and nothing was refused"
    got = caught[0]
    fits = type(got) is kind and match in got.message and reason in ("", got.reason)
    assert fits, f"expected {kind.__name__} {reason} {match!r}, got {got.reason}: {got!r}"
