"""A cloud for tests: enrolment, plans, blobs, reports, push and tunnel, with real signatures, in one server.

    async with FakeCloud() as cloud:
        cloud.publish(task("hello", "1"))
        await cloud.want("d1", {"hello": "1"})
        async with running(Agent(config(tmp_path, cloud))) as app:
            ...

It keeps every byte that came in (`wire`), can stop at a stage until it is let go (`hold`, `reached`), and can
be told to lie (`plan`, `blob`).
"""

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import blob_pb2, device_pb2, pull_pb2
from isthmus.gateway.v1 import gateway_pb2
from isthmus.trust.v1 import trust_pb2
from isthmus.tunnel.v1 import tunnel_pb2
from libs.common import errors
from libs.task.profile import HEADER, parse_profile_header, profile_digest
from libs.trust.digests import sha256_of
from libs.trust.keys import SigningKey
from libs.trust.root import Root
from libs.trust.signing import RoleKeys, sign_message
from services.device_agent.testing.answering import Answering
from services.device_agent.testing.server import RecordingServer
from services.device_agent.testing.tasks import TaskVersion
from services.device_agent.testing.tunnel import FakeTunnel

TENANT = "acme"
TOKEN = "token-for-tests"
_CHUNK = 64 * 1024


@dataclass(slots=True)
class _Device:
    public: Ed25519PublicKey
    credential: str
    counter: int = 0
    wanted: dict[str, tuple[str, str]] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)


class FakeCloud:
    """See the module's text.

    Attributes:
        port: where it listens.
        wire: every message that came in, as bytes, by method.
        calls: how often each method was called.
        reports: every stage report, once each.
        tunnel: its end of the tunnel.
        frames: (device, stream) → sequence → frame, as the log would hold them.
        hold: stages at which to stop: clear an event to stop there. "Plan", "Report", "ReadBlob", "Enrol",
            "ack", "chunk" (after a blob's first chunk).
        reached: set when a call has come to a stage, whether it stops there or not.
        fail: method → errors to answer the next calls with.
        plan: changes a plan's answer before it is sent.
        blob: changes a blob's bytes before they are sent.
        credential_s: how long credentials last.
        clock_ahead_s: how far the cloud's clock is ahead of this machine's.
        set_lifetime: how long signed sets last.
        enrolment_root: what devices get to pin; the newest root unless told otherwise.
        refuse_stage: a stage whose reports are answered INVALID_ARGUMENT; empty refuses none.
        credentials: TLS; None speaks in the clear.
    """

    def __init__(self) -> None:
        self.port = 0
        self.wire: dict[str, list[bytes]] = defaultdict(list)
        self.calls: dict[str, int] = defaultdict(int)
        self.reports: dict[str, pull_pb2.StageReport] = {}
        self.tunnel = FakeTunnel(self)
        self.frames = self.tunnel.frames
        self.offsets: list[int] = []
        self.hold: dict[str, asyncio.Event] = {}
        self.reached: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.fail: dict[str, list[errors.Error]] = defaultdict(list)
        self.plan: Callable[[pull_pb2.PlanResponse], pull_pb2.PlanResponse] = lambda response: response
        self.blob: Callable[[str, bytes], bytes] = lambda digest, data: data
        self.credential_s = 30 * 86400.0
        self.clock_ahead_s = 0.0
        self.set_lifetime = timedelta(hours=24)
        self.refuse_stage = ""
        self.credentials: grpc.ServerCredentials | None = None
        self.devices: dict[str, _Device] = {}
        self.root_keys = SigningKey.generate()
        self.author = SigningKey.generate()
        self.deployer = SigningKey.generate()
        now = datetime.now(UTC)
        self.root = Root(
            TENANT,
            1,
            now - timedelta(days=1),
            now + timedelta(days=365),
            root=RoleKeys.of([self.root_keys.public]),
            author=RoleKeys.of([self.author.public]),
            deployer=RoleKeys.of([self.deployer.public]),
        )
        self.roots = [self.root.sign([self.root_keys])]
        self.enrolment_root: trust_pb2.Signed | None = None
        self._manifests: dict[str, trust_pb2.Signed] = {}
        self._blobs: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._server: RecordingServer | None = None

    # ---- what a test tells it ----

    def publish(self, version: TaskVersion) -> TaskVersion:
        """Take a version in."""
        self._blobs |= version.blobs
        self._manifests[version.key] = sign_message(version.manifest, [version.author or self.author])
        return version

    def forget_blob(self, digest: str) -> None:
        """Lose a blob."""
        del self._blobs[digest]

    async def want(self, device: str, versions: Mapping[str, str], release: str = "r1") -> None:
        """Set what a device is to run, and tell it."""
        state = self.devices.setdefault(device, _Device(None, ""))  # type: ignore[arg-type]
        state.wanted = {
            name: (version, f"tenants/{TENANT}/releases/{release}") for name, version in versions.items()
        }
        state.counter += 1
        async with self._changed:
            self._changed.notify_all()

    def rotate(self, root: Root, keys: list[SigningKey]) -> None:
        """Install the next root."""
        self.root = root
        self.roots.append(root.sign(keys))

    def stages(self, key: str) -> list[str]:
        """Return the stages reported for `task@version`, in order."""
        return [
            pull_pb2.StageReport.Stage.Name(report.stage).removeprefix("STAGE_")
            for report in self.reports.values()
            if f"{report.task}@{report.version}" == key
        ]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that the cloud knows holds."""
        async with self._changed:
            await self._changed.wait_for(condition)

    def signed_set(self, device: str) -> trust_pb2.Signed:
        """Sign what a device is to run."""
        state = self.devices[device]
        now = datetime.fromtimestamp(self.now_s(), UTC)
        message = pull_pb2.DeviceSet(
            tenant=TENANT,
            device=device,
            counter=state.counter,
            sign_time=_timestamp(now),
            expire_time=_timestamp(now + self.set_lifetime),
            entries=[
                pull_pb2.DeviceSet.Entry(
                    task=name,
                    version=version,
                    manifest_digest=sha256_of(self._manifests[f"{name}@{version}"].payload),
                    release=release,
                )
                for name, (version, release) in sorted(state.wanted.items())
            ],
        )
        return sign_message(message, [self.deployer])

    def now_s(self) -> float:
        """Return the cloud's time."""
        return time.time() + self.clock_ahead_s

    # ---- serving ----

    async def __aenter__(self) -> "FakeCloud":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Listen; also again, on the same port, after `stop`."""
        server = RecordingServer(self, self.wire)
        server.unary("isthmus.deployer.v1.EnrolmentService", "Enrol", self._enrol, device_pb2.EnrolRequest)
        server.unary(
            "isthmus.deployer.v1.EnrolmentService",
            "RenewCredential",
            self._renew,
            device_pb2.RenewCredentialRequest,
        )
        server.unary("isthmus.deployer.v1.PullService", "Plan", self._plan, pull_pb2.PlanRequest)
        server.unary("isthmus.deployer.v1.PullService", "Report", self._report, pull_pb2.ReportRequest)
        server.answers(
            "isthmus.deployer.v1.BlobService", "ReadBlob", self._read_blob, blob_pb2.ReadBlobRequest
        )
        server.answers("isthmus.gateway.v1.PushService", "Watch", self._watch, gateway_pb2.WatchRequest)
        server.both_ways(
            "isthmus.tunnel.v1.TunnelService", "Connect", self.tunnel.connect, tunnel_pb2.ConnectRequest
        )
        self.port = await server.start(port or self.port, self.credentials)
        self._server = server

    async def stop(self) -> None:
        """Stop listening and cut every connection; what it knows stays."""
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def stage(self, name: str) -> None:
        """Note that a call has come to a stage, and stop there if told to."""
        self.reached[name].set()
        if name in self.hold:
            await self.hold[name].wait()

    async def notify(self) -> None:
        """Wake whoever waits for something that the cloud knows."""
        async with self._changed:
            self._changed.notify_all()

    def authenticate(self, metadata: Mapping[str, str]) -> str:
        """Return the device that calls.

        Raises:
            Unauthenticated: when credential or token don't hold.
        """
        scheme, _, token = metadata.get("authorization", "").partition(" ")
        credential = metadata.get("x-isthmus-credential", "")
        name = next((n for n, d in self.devices.items() if d.credential and d.credential == credential), "")
        if scheme != "Device" or not name:
            raise errors.Unauthenticated("no credential that we know", reason="NO_CREDENTIAL")
        try:
            claims = jwt.decode(
                token,
                self.devices[name].public,
                ["EdDSA"],
                audience="gateway",
                options={"verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError as error:
            raise errors.Unauthenticated(f"device token: {error}", reason="BAD_TOKEN") from error
        if not claims["iat"] - 60 <= self.now_s() < claims["exp"] + 60:
            raise errors.Unauthenticated("device token: your clock is wrong", reason="CLOCK_SKEW")
        assert claims["sub"] == f"tenants/{TENANT}/devices/{name}"
        assert claims["exp"] - claims["iat"] <= 300
        return name

    def differs(self, device: str, metadata: Mapping[str, str]) -> bool:
        """Tell whether a device's wanted set differs from the profile that it sent."""
        state = self.devices[device]
        wanted = [f"{name}@{version}" for name, (version, _) in state.wanted.items()]
        return profile_digest(wanted) != parse_profile_header(metadata[HEADER])

    # ---- methods ----

    async def _enrol(self, request: device_pb2.EnrolRequest, _: str) -> device_pb2.EnrolResponse:
        if request.token != TOKEN:
            raise errors.Unauthenticated("token: unknown or expired", reason="BAD_TOKEN")
        public = Ed25519PublicKey.from_public_bytes(request.public_key)
        known = self.devices.get(request.device_id)
        if known is not None and known.public is not None and known.public != public:
            raise errors.AlreadyExists(f"{request.device_id} has another key", reason="OTHER_KEY")
        signed = b"\0".join(
            (b"isthmus-enrol-v1", request.token.encode(), request.device_id.encode(), request.public_key)
        )
        public.verify(request.proof, signed)
        state = self.devices.setdefault(request.device_id, _Device(public, ""))
        state.public = public
        state.credential = f"credential-{len(self.wire['Enrol'])}-{hashlib.sha256(request.proof).hexdigest()}"
        return device_pb2.EnrolResponse(
            device=f"tenants/{TENANT}/devices/{request.device_id}",
            credential=state.credential,
            expire_time=self._expire_time(),
            root=self.enrolment_root or self.roots[-1],
        )

    async def _renew(
        self, _: device_pb2.RenewCredentialRequest, device: str
    ) -> device_pb2.RenewCredentialResponse:
        state = self.devices[device]
        state.credential = f"credential-{len(self.wire['RenewCredential'])}"
        return device_pb2.RenewCredentialResponse(
            credential=state.credential, expire_time=self._expire_time()
        )

    def _expire_time(self) -> Timestamp:
        return _timestamp(datetime.fromtimestamp(self.now_s() + self.credential_s, UTC))

    async def _plan(self, request: pull_pb2.PlanRequest, device: str) -> pull_pb2.PlanResponse:
        state = self.devices[device]
        state.reported = list(request.profile)
        wanted = {f"{name}@{version}" for name, (version, _) in state.wanted.items()}
        return self.plan(
            pull_pb2.PlanResponse(
                device_set=self.signed_set(device),
                manifests=[self._manifests[key] for key in sorted(wanted - set(request.profile))],
                remove=sorted(set(request.profile) - wanted),
                roots=self.roots[request.root_version :],
            )
        )

    async def _report(self, request: pull_pb2.ReportRequest, device: str) -> pull_pb2.ReportResponse:
        state = self.devices[device]
        state.reported = list(request.profile)
        stages = {pull_pb2.StageReport.Stage.Name(report.stage) for report in request.reports}
        if f"STAGE_{self.refuse_stage}" in stages:
            raise errors.Invalid(f"reports: no {self.refuse_stage} here")
        for report in request.reports:
            self.reports.setdefault(report.report_id, report)
            wanted = state.wanted.get(report.task)
            failed = report.stage == pull_pb2.StageReport.STAGE_FAILED
            if failed and wanted == (report.version, report.release):
                del state.wanted[report.task]  # as the deployer does, down to nothing
                back = next((k for k in request.profile if k.startswith(f"{report.task}@")), None)
                if back is not None:
                    state.wanted[report.task] = (back.partition("@")[2], report.release)
                state.counter += 1
        return pull_pb2.ReportResponse()

    async def _read_blob(self, request: blob_pb2.ReadBlobRequest, context: Any) -> AsyncIterator[Any]:
        async with Answering(self, "ReadBlob", context):
            data = self._blobs.get(request.digest)
            if data is None:
                raise errors.NotFound(f"{request.digest}: not found", reason="NO_BLOB")
            data = self.blob(request.digest, data)
            self.offsets.append(request.offset_bytes)
            for at in range(request.offset_bytes, len(data), _CHUNK):
                yield blob_pb2.ReadBlobResponse(data=data[at : at + _CHUNK], size_bytes=len(data))
                await self.stage("chunk")

    async def _watch(self, request: gateway_pb2.WatchRequest, context: Any) -> AsyncIterator[Any]:
        async with Answering(self, "Watch", context) as device:
            await context.send_initial_metadata(())
            told = -1
            while True:
                state = self.devices[device]
                wanted = [f"{name}@{version}" for name, (version, _) in state.wanted.items()]
                if state.counter != told and profile_digest(wanted) != request.profile_digest:
                    told = state.counter
                    yield gateway_pb2.WatchResponse()
                async with self._changed:
                    await self._changed.wait()

    def fence(self, device: str) -> None:
        """Act as if another agent had connected as this device."""
        self.tunnel.fence(device)


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
