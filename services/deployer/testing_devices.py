"""For tests: devices that enrol, pull, verify and report as an agent does, without running anything."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from isthmus.deployer.v1 import (
    device_pb2,
    device_pb2_grpc,
    pull_pb2,
    pull_pb2_grpc,
)
from isthmus.trust.v1 import trust_pb2
from libs.common.client import Channel
from libs.common.identity import GATEWAY, Identity
from libs.common.names import DeviceName
from libs.trust.keys import SigningKey
from libs.trust.state import DeviceSet, TrustedState
from libs.trust.testing import fake_key
from services.deployer.domain.fleet import PROOF_DOMAIN

Stage = pull_pb2.StageReport.Stage
DONE = (
    Stage.STAGE_DOWNLOADED,
    Stage.STAGE_VERIFIED,
    Stage.STAGE_STAGED,
    Stage.STAGE_ACTIVATED,
    Stage.STAGE_CONFIRMED,
)
ActingAs = Callable[[Identity | None], Channel]


def enrol_request(
    token: str, device_id: str, key: SigningKey, attributes: Mapping[str, str] | None = None
) -> device_pb2.EnrolRequest:
    """Return a request with its proof."""
    public = key.public.public_bytes_raw()
    proof = key.private.sign(b"\0".join((PROOF_DOMAIN, token.encode(), device_id.encode(), public)))
    return device_pb2.EnrolRequest(
        token=token, device_id=device_id, public_key=public, proof=proof, attributes=attributes or {}
    )


@dataclass
class SimulatedDevice:
    """A device that believes only what verifies, and does what it is told or fails at it."""

    acting_as: ActingAs
    tenant: str
    device_id: str
    agent_version: str = "0.1.0"
    python_version: str = "3.11"
    profile: set[str] = field(default_factory=set)
    credential: str = ""
    root: trust_pb2.Signed | None = None
    last_set: bytes | None = None
    reports: int = 0

    @property
    def name(self) -> str:
        """Its resource name."""
        return f"tenants/{self.tenant}/devices/{self.device_id}"

    @property
    def key(self) -> SigningKey:
        """Its key, known to everybody."""
        return fake_key(self.name)

    @property
    def identity(self) -> Identity:
        """Who it is, as the gateway says."""
        return Identity(self.tenant, self.name, "device", frozenset(), GATEWAY)

    @property
    def pull(self) -> "pull_pb2_grpc.PullServiceAsyncStub":
        """The pull API, called as this device."""
        return pull_pb2_grpc.PullServiceStub(self.acting_as(self.identity))

    @property
    def enrolment(self) -> "device_pb2_grpc.EnrolmentServiceAsyncStub":
        """The enrolment API, called as this device."""
        return device_pb2_grpc.EnrolmentServiceStub(self.acting_as(self.identity))

    async def enrol(self, token: str, attributes: Mapping[str, str] | None = None) -> None:
        """Enrol and pin the root."""
        stub = device_pb2_grpc.EnrolmentServiceStub(self.acting_as(None))
        answer = await stub.Enrol(enrol_request(token, self.device_id, self.key, attributes))
        self.credential, self.root = answer.credential, answer.root

    async def plan(self) -> tuple[DeviceSet, pull_pb2.PlanResponse]:
        """Ask what to run, and verify the whole answer."""
        assert self.root is not None
        answer = await self.pull.Plan(
            pull_pb2.PlanRequest(
                profile=sorted(self.profile),
                root_version=trust_pb2.Root.FromString(self.root.payload).version,
                agent_version=self.agent_version,
                python_version=self.python_version,
            )
        )
        now = datetime.now(UTC)
        state = TrustedState(self.root, DeviceName(self.tenant, self.device_id), now, self.last_set)
        for root in answer.roots:
            state.update_root(root)
        accepted = state.accept_device_set(answer.device_set)
        for manifest in answer.manifests:
            state.accept_manifest(manifest)
        self.root, self.last_set = state.root_signed, state.device_set_payload
        return accepted, answer

    async def report(
        self,
        entry: tuple[str, str, str],
        stages: Iterable[Stage.ValueType],
        *,
        reason: str = "",
        report_id: str = "",
    ) -> None:
        """Report stages of (task, version, release), each with a new id unless told."""
        task, version, release = entry
        reports = []
        for stage in stages:
            self.reports += 1
            reports.append(
                pull_pb2.StageReport(
                    report_id=report_id or f"r{self.reports}",
                    task=task,
                    version=version,
                    release=release,
                    stage=stage,
                    failure_reason=reason,
                )
            )
        await self.pull.Report(pull_pb2.ReportRequest(reports=reports, profile=sorted(self.profile)))

    async def follow(self, *, failing: Iterable[str] = ()) -> set[str]:
        """Do what the plan says, once; versions in `failing` fail once active. Return what it runs then."""
        wanted, _ = await self.plan()
        bad = set(failing)
        keys = {entry.key for entry in wanted.entries.values()}
        for entry in wanted.entries.values():
            if entry.key in self.profile:
                continue
            told = (entry.task, entry.version, entry.release)
            if entry.key in bad:
                await self.report(told, (*DONE[:4], Stage.STAGE_FAILED), reason="EXCEPTION")
                keys.discard(entry.key)
                keys |= {kept for kept in self.profile if kept.startswith(f"{entry.task}@")}
            else:
                before = {kept for kept in self.profile if kept.startswith(f"{entry.task}@")}
                self.profile = (self.profile - before) | {entry.key}
                await self.report(told, DONE)
        self.profile = keys
        return keys
