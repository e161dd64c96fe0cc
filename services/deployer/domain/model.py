"""The things that the deployer keeps. Values only: every rule about them lives beside its user.

All times are aware and in UTC. A `revision` grows by one with each write and is the resource's etag.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from libs.common.names import DeviceName, ReleaseName, TaskName, VersionName


@dataclass(frozen=True, slots=True)
class Task:
    """A line of versions."""

    name: TaskName
    description: str
    create_time: datetime
    revision: int = 1


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A content-addressed file: `sha256:<hex>` and its size in bytes."""

    digest: str
    size_bytes: int


class PreflightState(enum.IntEnum):
    """The verdict of a pre-flight."""

    PASSED = 1
    FAILED = 2
    SKIPPED = 3
    """There was no simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """How a version did over recorded events, before it was published. Counts are of the simulator's runs."""

    state: PreflightState
    reason: str = ""
    """UPPER_SNAKE, of a failure."""
    message: str = ""
    events: BlobRef | None = None
    """The recording; None when there was none."""
    event_count: int = 0
    run_count: int = 0
    failure_count: int = 0
    frame_count: int = 0
    frame_bytes: int = 0
    refused_frame_count: int = 0
    asked_count: int = 0
    p50_run_time: timedelta | None = None
    """None without runs; so is the next."""
    p99_run_time: timedelta | None = None
    end_time: datetime | None = None
    """None when it was skipped."""


@dataclass(frozen=True, slots=True)
class Version:
    """A published version of a task; never changes but for signatures that are added to its manifest."""

    name: VersionName
    manifest: bytes
    """The serialised `isthmus.trust.v1.Signed`."""
    manifest_digest: str
    """Of the signed payload, as the author's machine sent it."""
    create_time: datetime
    publisher: str
    total_bytes: int
    sequence: int = 0
    """Order of publication within the store; set by it."""
    preflight: Preflight | None = None
    """None for a version from before there were pre-flights."""

    @property
    def entry(self) -> str:
        """The profile entry `task@version`."""
        return f"{self.name.task}@{self.name.version}"


@dataclass(frozen=True, slots=True)
class Root:
    """An installed trust root of a tenant."""

    tenant: str
    version: int
    signed: bytes
    """The serialised `isthmus.trust.v1.Signed`."""
    expire_time: datetime
    """From then on nothing new is accepted under it."""


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """What lets devices enrol; the secret itself isn't stored."""

    token_hash: bytes
    tenant: str
    attributes: Mapping[str, str]
    expire_time: datetime
    uses_left: int


@dataclass(frozen=True, slots=True)
class Device:
    """An enrolled device."""

    name: DeviceName
    public_key: bytes
    attributes: Mapping[str, str]
    create_time: datetime
    last_seen_time: datetime
    reported: tuple[str, ...] = ()
    """`task@version` of what it last said is active, sorted as bytes."""
    revoked: bool = False
    revision: int = 1
    """Grows when a person changes the device; not with its plans and reports."""
    set_counter: int = 0
    set_digest: bytes = b""
    """Of the entries of the last signed set: equal entries keep the counter."""


class Stage(enum.IntEnum):
    """How far a version has come on a device. A larger one replaces a smaller one; FAILED is final."""

    DOWNLOADED = 1
    VERIFIED = 2
    STAGED = 3
    ACTIVATED = 4
    CONFIRMED = 5
    FAILED = 6


@dataclass(frozen=True, slots=True)
class StageReport:
    """A device's word on one version."""

    report_id: str
    task: str
    version: str
    release: str
    stage: Stage
    failure_reason: str = ""
    failure_message: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """The furthest stage that a device reported for a release."""

    device: DeviceName
    release_sequence: int
    task: str
    version: str
    stage: Stage
    failure_reason: str = ""
    failure_message: str = ""
    time: datetime | None = None
    """When the deployer was told; None where nobody told it, and from before this was kept."""


@dataclass(frozen=True, slots=True)
class VersionFailure:
    """A version that a device gave up under a release."""

    version: VersionName
    release: ReleaseName
    reason: str
    message: str
    time: datetime | None


class ReleaseState(enum.IntEnum):
    """Where a release stands."""

    RUNNING = 1
    PAUSED = 2
    SUCCEEDED = 3
    ROLLED_BACK = 4
    SUPERSEDED = 5

    @property
    def ended(self) -> bool:
        """Whether nothing but a roll-back can change it any more."""
        return self not in (ReleaseState.RUNNING, ReleaseState.PAUSED)


@dataclass(frozen=True, slots=True)
class Gate:
    """When a step counts as good or bad; percents are of 100."""

    confirmed_percent: float = 95.0
    failed_percent: float = 5.0
    min_report_count: int = 1
    soak_time: timedelta = timedelta(0)
    step_timeout: timedelta = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How many devices gave one reason for their failure."""

    reason: str
    """UPPER_SNAKE, in the devices' words."""
    devices: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Devices of a release: those selected, and how many have come how far, each at its furthest stage."""

    targeted: int = 0
    downloaded: int = 0
    verified: int = 0
    staged: int = 0
    activated: int = 0
    confirmed: int = 0
    failed: int = 0
    failures: tuple[FailureCount, ...] = ()
    """Why those failed: the most frequent reasons first, at most ten."""

    @classmethod
    def of(
        cls, targeted: int, stages: Mapping[Stage, int], failures: Sequence[FailureCount] = ()
    ) -> "Counts":
        """Return the counts of `targeted` devices of which `stages` have reported, and why some failed."""
        return cls(
            targeted,
            downloaded=stages.get(Stage.DOWNLOADED, 0),
            verified=stages.get(Stage.VERIFIED, 0),
            staged=stages.get(Stage.STAGED, 0),
            activated=stages.get(Stage.ACTIVATED, 0),
            confirmed=stages.get(Stage.CONFIRMED, 0),
            failed=stages.get(Stage.FAILED, 0),
            failures=tuple(failures),
        )


@dataclass(frozen=True, slots=True)
class StepStatus:
    """An opened step of a release."""

    share: int
    """Basis points (1/100 %) of the selected devices, up to and with this step."""
    open_time: datetime
    close_time: datetime | None = None
    counts: Counts | None = None
    """Frozen when the step closed; None while it is open."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of one version. Counts and the reason of a running one are computed when it is read."""

    name: ReleaseName
    version: VersionName
    policy_json: str
    shares: tuple[int, ...]
    """Basis points, ascending."""
    gate: Gate
    salt: bytes
    create_time: datetime
    creator: str
    state: ReleaseState = ReleaseState.RUNNING
    state_reason: str = ""
    steps: tuple[StepStatus, ...] = ()
    resume_time: datetime | None = None
    """When a person last resumed it; the step's timeout counts from then."""
    end_time: datetime | None = None
    end_counts: Counts | None = None
    """Counts when it ended by being rolled back; its devices are forgotten by the gate after."""
    revision: int = 1
    sequence: int = 0
    """Order of creation within the store; set by it. Newer releases win."""

    @property
    def step_index(self) -> int:
        """Index of the open step."""
        return max(0, len(self.steps) - 1)

    @property
    def open_share(self) -> int:
        """Basis points of the selected devices that have the release offered."""
        return self.steps[-1].share if self.steps else 0


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One write or one decision of a controller; never changed or removed."""

    tenant: str
    actor: str
    action: str
    resource: str
    detail: str
    event_time: datetime
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class BlobRecord:
    """A tenant's reference to a stored blob."""

    tenant: str
    blob: BlobRef
    create_time: datetime
    touch_time: datetime
    """When it was last uploaded or asked to be; an unpinned one is collected some time after."""
    pin_count: int = 0


@dataclass(frozen=True, slots=True)
class PastRequest:
    """A create that was answered, by its request id."""

    tenant: str
    request_id: str
    fingerprint: bytes
    """Of the request: the same id with another request is refused."""
    resource: str
    create_time: datetime


@dataclass(frozen=True, slots=True)
class FleetRow:
    """What selecting devices needs of one, for passes over many."""

    device: str
    attributes_json: str
    """Canonical JSON, so that equal attributes are equal texts."""
    reported: tuple[str, ...]
    revoked: bool


@dataclass(frozen=True, slots=True)
class SetEntry:
    """A version that a device shall run."""

    task: str
    version: str
    manifest_digest: str
    release: str


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """All that a device shall run, to be signed."""

    device: DeviceName
    counter: int
    sign_time: datetime
    expire_time: datetime
    entries: tuple[SetEntry, ...] = field(default=())
