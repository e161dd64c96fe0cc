"""A store in memory, for tests: the promises of `services.deployer.store` with plain dictionaries."""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from libs.common.errors import AlreadyExists, Conflict
from libs.common.names import DeviceName, ReleaseName, TaskName, VersionName
from libs.task import jsontext
from services.deployer.domain.model import (
    AuditEntry,
    BlobRecord,
    BlobRef,
    Device,
    DeviceStage,
    EnrolmentToken,
    FailureCount,
    FleetRow,
    PastRequest,
    Release,
    ReleaseState,
    Root,
    Stage,
    Task,
    Version,
    VersionFailure,
)
from services.deployer.store import Tx

T = TypeVar("T")


@dataclass
class _Tables:
    """All that is stored. Values are immutable, so that copying the dictionaries makes a snapshot."""

    tasks: dict[TaskName, Task] = field(default_factory=dict)
    versions: dict[VersionName, Version] = field(default_factory=dict)
    roots: dict[tuple[str, int], Root] = field(default_factory=dict)
    tokens: dict[bytes, EnrolmentToken] = field(default_factory=dict)
    devices: dict[DeviceName, Device] = field(default_factory=dict)
    releases: dict[ReleaseName, Release] = field(default_factory=dict)
    stages: dict[tuple[DeviceName, int], DeviceStage] = field(default_factory=dict)
    reports: dict[tuple[DeviceName, str], datetime] = field(default_factory=dict)
    blobs: dict[tuple[str, str], BlobRecord] = field(default_factory=dict)
    pins: dict[tuple[str, str, str], None] = field(default_factory=dict)
    requests: dict[tuple[str, str], PastRequest] = field(default_factory=dict)
    audit: dict[int, AuditEntry] = field(default_factory=dict)
    revisions: dict[tuple[str, str], int] = field(default_factory=dict)

    def snapshot(self) -> "_Tables":
        return _Tables(**{name: copy.copy(table) for name, table in vars(self).items()})


class MemoryStore:
    """Serialises transactions by running each at once, on the event loop's own thread."""

    def __init__(self) -> None:
        self._tables = _Tables()

    async def run(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on a copy, which becomes the state unless it raises."""
        tables = self._tables.snapshot()
        result = work(MemoryTx(tables))
        self._tables = tables
        return result

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on a copy that is thrown away."""
        return work(MemoryTx(self._tables.snapshot()))

    async def close(self) -> None:
        """Do nothing."""


class MemoryTx:
    """A transaction over one copy of the tables."""

    def __init__(self, tables: _Tables) -> None:
        self._t = tables

    def add_task(self, task: Task) -> None:
        """See `Tx`."""
        _add(self._t.tasks, task.name, task)

    def get_task(self, name: TaskName) -> Task | None:
        """See `Tx`."""
        return self._t.tasks.get(name)

    def list_tasks(self, tenant: str, after: str, limit: int) -> Sequence[Task]:
        """See `Tx`."""
        found = [t for n, t in self._t.tasks.items() if n.tenant == tenant and n.task > after]
        return sorted(found, key=lambda t: t.name.task)[:limit]

    def add_version(self, version: Version) -> Version:
        """See `Tx`."""
        version = replace(version, sequence=self._next("versions"))
        _add(self._t.versions, version.name, version)
        return version

    def get_version(self, name: VersionName) -> Version | None:
        """See `Tx`."""
        return self._t.versions.get(name)

    def replace_manifest(self, version: Version) -> None:
        """See `Tx`."""
        versions = self._t.versions
        versions[version.name] = replace(versions[version.name], manifest=version.manifest)

    def list_versions(self, task: TaskName, before: int | None, limit: int) -> Sequence[Version]:
        """See `Tx`."""
        found = [v for n, v in self._t.versions.items() if n.parent == task and _below(v.sequence, before)]
        return sorted(found, key=lambda v: -v.sequence)[:limit]

    def newest_events(self, task: TaskName) -> BlobRef | None:
        """See `Tx`."""
        tried = (
            v.preflight.events for v in self.list_versions(task, None, len(self._t.versions)) if v.preflight
        )
        return next((events for events in tried if events is not None), None)

    def add_root(self, root: Root) -> None:
        """See `Tx`."""
        _add(self._t.roots, (root.tenant, root.version), root)

    def newest_root(self, tenant: str) -> Root | None:
        """See `Tx`."""
        roots = [r for (t, _), r in self._t.roots.items() if t == tenant]
        return max(roots, key=lambda r: r.version, default=None)

    def list_roots(self, tenant: str, first: int, limit: int) -> Sequence[Root]:
        """See `Tx`."""
        found = [r for (t, v), r in self._t.roots.items() if t == tenant and v >= first]
        return sorted(found, key=lambda r: r.version)[:limit]

    def add_token(self, token: EnrolmentToken) -> None:
        """See `Tx`."""
        _add(self._t.tokens, token.token_hash, token)

    def get_token(self, token_hash: bytes) -> EnrolmentToken | None:
        """See `Tx`."""
        return self._t.tokens.get(token_hash)

    def use_token(self, token_hash: bytes) -> bool:
        """See `Tx`."""
        token = self._t.tokens.get(token_hash)
        if token is None or token.uses_left < 1:
            return False
        self._t.tokens[token_hash] = replace(token, uses_left=token.uses_left - 1)
        return True

    def add_device(self, device: Device) -> None:
        """See `Tx`."""
        _add(self._t.devices, device.name, device)
        self._bump("fleet", device.name.tenant)

    def get_device(self, name: DeviceName) -> Device | None:
        """See `Tx`."""
        return self._t.devices.get(name)

    def update_device(self, device: Device) -> None:
        """See `Tx`."""
        stored = _replace(self._t.devices, device.name, device)
        self._t.devices[device.name] = replace(
            stored, attributes=dict(device.attributes), revoked=device.revoked, revision=device.revision
        )
        self._bump("fleet", device.name.tenant)

    def touch_device(self, device: Device) -> None:
        """See `Tx`."""
        self._t.devices[device.name] = replace(
            self._t.devices[device.name],
            reported=device.reported,
            last_seen_time=device.last_seen_time,
            set_counter=device.set_counter,
            set_digest=device.set_digest,
        )

    def list_devices(self, tenant: str, after: str, limit: int) -> Sequence[Device]:
        """See `Tx`."""
        found = [d for n, d in self._t.devices.items() if n.tenant == tenant and n.device > after]
        return sorted(found, key=lambda d: d.name.device)[:limit]

    def scan_fleet(self, tenant: str, after: str, limit: int) -> Sequence[FleetRow]:
        """See `Tx`."""
        return [
            FleetRow(d.name.device, jsontext.canonical(dict(d.attributes)), d.reported, d.revoked)
            for d in self.list_devices(tenant, after, limit)
        ]

    def fleet_revision(self, tenant: str) -> int:
        """See `Tx`."""
        return self._t.revisions.get(("fleet", tenant), 0)

    def fleet_tenants(self) -> Sequence[str]:
        """See `Tx`."""
        return sorted({name.tenant for name in self._t.devices})

    def add_release(self, release: Release) -> Release:
        """See `Tx`."""
        release = replace(release, sequence=self._next("releases"))
        _add(self._t.releases, release.name, release)
        self._bump("releases", release.name.tenant)
        return release

    def get_release(self, name: ReleaseName) -> Release | None:
        """See `Tx`."""
        return self._t.releases.get(name)

    def update_release(self, release: Release) -> None:
        """See `Tx`."""
        _replace(self._t.releases, release.name, release)
        self._t.releases[release.name] = release
        self._bump("releases", release.name.tenant)

    def list_releases(self, tenant: str, before: int | None, limit: int) -> Sequence[Release]:
        """See `Tx`."""
        found = [r for n, r in self._t.releases.items() if n.tenant == tenant and _below(r.sequence, before)]
        return sorted(found, key=lambda r: -r.sequence)[:limit]

    def releases_in_effect(self, tenant: str) -> Sequence[Release]:
        """See `Tx`."""
        releases = self._t.releases.values()
        return [r for r in releases if r.name.tenant == tenant and r.state is not ReleaseState.ROLLED_BACK]

    def running_releases(self) -> Sequence[ReleaseName]:
        """See `Tx`."""
        return [r.name for r in self._t.releases.values() if r.state is ReleaseState.RUNNING]

    def release_state_counts(self) -> Mapping[ReleaseState, int]:
        """See `Tx`."""
        return Counter(r.state for r in self._t.releases.values())

    def release_revision(self, tenant: str) -> int:
        """See `Tx`."""
        return self._t.revisions.get(("releases", tenant), 0)

    def put_stage(self, stage: DeviceStage) -> bool:
        """See `Tx`."""
        key = (stage.device, stage.release_sequence)
        stored = self._t.stages.get(key)
        if stored is not None and stored.stage >= stage.stage:
            return False
        self._t.stages[key] = stage
        return True

    def put_running(self, release: Release, devices: Sequence[str]) -> None:
        """See `Tx`."""
        for device in devices:
            name = DeviceName(release.name.tenant, device)
            stage = DeviceStage(
                name, release.sequence, release.version.task, release.version.version, Stage.CONFIRMED
            )
            self._t.stages.setdefault((name, release.sequence), stage)

    def device_stages(self, device: DeviceName) -> Sequence[DeviceStage]:
        """See `Tx`."""
        return [s for (d, _), s in sorted(self._t.stages.items(), key=_stage_order) if d == device]

    def device_failures(self, device: DeviceName, limit: int) -> Sequence[VersionFailure]:
        """See `Tx`."""
        releases = {release.sequence: release for release in self._t.releases.values()}
        return [
            VersionFailure(release.version, release.name, s.failure_reason, s.failure_message, s.time)
            for s in reversed(self.device_stages(device))
            if s.stage is Stage.FAILED and (release := releases.get(s.release_sequence)) is not None
        ][:limit]

    def drop_stages(self, device: DeviceName, releases: Collection[int]) -> None:
        """See `Tx`."""
        for sequence in releases:
            self._t.stages.pop((device, sequence), None)

    def failed_stages(self, tenant: str, after: str, up_to: str) -> Sequence[DeviceStage]:
        """See `Tx`."""
        return [
            s
            for s in self._t.stages.values()
            if s.device.tenant == tenant and after < s.device.device <= up_to and s.stage is Stage.FAILED
        ]

    def stage_counts(self, release_sequence: int) -> Mapping[Stage, int]:
        """See `Tx`."""
        return Counter(s.stage for (_, r), s in self._t.stages.items() if r == release_sequence)

    def failed_count(self, release_sequence: int) -> int:
        """See `Tx`."""
        return self.stage_counts(release_sequence).get(Stage.FAILED, 0)

    def failure_counts(self, release_sequence: int, limit: int) -> Sequence[FailureCount]:
        """See `Tx`."""
        failed = Counter(
            s.failure_reason
            for (_, r), s in self._t.stages.items()
            if r == release_sequence and s.stage is Stage.FAILED
        )
        ordered = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
        return [FailureCount(reason, count) for reason, count in ordered[:limit]]

    def add_report(self, device: DeviceName, report_id: str, now: datetime) -> bool:
        """See `Tx`."""
        if (device, report_id) in self._t.reports:
            return False
        self._t.reports[device, report_id] = now
        return True

    def prune(self, before: datetime) -> int:
        """See `Tx`."""
        t = self._t
        known = len(t.reports) + len(t.requests)
        t.reports = {key: time for key, time in t.reports.items() if time >= before}
        t.requests = {key: past for key, past in t.requests.items() if past.create_time >= before}
        return known - len(t.reports) - len(t.requests)

    def put_blob(self, tenant: str, blob: BlobRef, now: datetime) -> BlobRecord:
        """See `Tx`."""
        stored = self._t.blobs.get((tenant, blob.digest)) or BlobRecord(tenant, blob, now, now)
        self._t.blobs[tenant, blob.digest] = replace(stored, touch_time=now)
        record = self.get_blob(tenant, blob.digest)
        assert record is not None
        return record

    def get_blob(self, tenant: str, digest: str) -> BlobRecord | None:
        """See `Tx`."""
        record = self._t.blobs.get((tenant, digest))
        return record and replace(record, pin_count=self._pins(tenant, digest))

    def pin_blobs(self, tenant: str, resource: str, digests: Collection[str]) -> None:
        """See `Tx`."""
        self._t.pins.update(((tenant, digest, resource), None) for digest in digests)

    def unpin_blobs(self, tenant: str, resource: str, now: datetime) -> int:
        """See `Tx`."""
        ended = [key for key in self._t.pins if (key[0], key[2]) == (tenant, resource)]
        for key in ended:
            del self._t.pins[key]
            if (record := self._t.blobs.get(key[:2])) is not None:
                self._t.blobs[key[:2]] = replace(record, touch_time=now)
        return len(ended)

    def drop_unpinned_blobs(self, before: datetime, limit: int) -> Sequence[str]:
        """See `Tx`."""
        old = sorted(k for k, r in self._t.blobs.items() if r.touch_time < before and not self._pins(*k))
        for key in old[:limit]:
            del self._t.blobs[key]
        return [digest for _, digest in old[:limit]]

    def blob_in_use(self, digest: str) -> bool:
        """See `Tx`."""
        return any(known == digest for _, known in self._t.blobs)

    def get_request(self, tenant: str, request_id: str) -> PastRequest | None:
        """See `Tx`."""
        return self._t.requests.get((tenant, request_id))

    def add_request(self, request: PastRequest) -> None:
        """See `Tx`."""
        _add(self._t.requests, (request.tenant, request.request_id), request)

    def add_audit(self, entry: AuditEntry) -> None:
        """See `Tx`."""
        sequence = self._next("audit")
        self._t.audit[sequence] = replace(entry, sequence=sequence)

    def list_audit(self, tenant: str, resource: str, before: int | None, limit: int) -> Sequence[AuditEntry]:
        """See `Tx`."""
        found = (
            e
            for e in sorted(self._t.audit.values(), key=lambda e: -e.sequence)
            if e.tenant == tenant and resource in ("", e.resource) and _below(e.sequence, before)
        )
        return list(itertools.islice(found, limit))

    def _pins(self, tenant: str, digest: str) -> int:
        return sum(1 for t, d, _ in self._t.pins if (t, d) == (tenant, digest))

    def _bump(self, what: str, tenant: str) -> None:
        self._t.revisions[what, tenant] = self._t.revisions.get((what, tenant), 0) + 1

    def _next(self, what: str) -> int:
        self._bump("sequence", what)
        return self._t.revisions["sequence", what]


K = TypeVar("K")
V = TypeVar("V")


def _add(table: dict[K, V], key: K, value: V) -> None:
    if key in table:
        raise AlreadyExists(f"{key}: exists already")
    table[key] = value


_Revised = TypeVar("_Revised", Device, Release)


def _replace(table: Mapping[K, _Revised], key: K, value: _Revised) -> _Revised:
    stored = table[key]
    if stored.revision != value.revision - 1:
        raise Conflict(f"{key}: was changed meanwhile; read it again and decide again", reason="STALE_ETAG")
    return stored


def _below(sequence: int, before: int | None) -> bool:
    return before is None or sequence < before


def _stage_order(item: tuple[tuple[DeviceName, int], DeviceStage]) -> tuple[str, int]:
    (device, sequence), _ = item
    return str(device), sequence
