"""What the deployer needs of its store.

**Transactions.** `Store.run(work)` calls `work` with a `Tx` and makes all of its writes durable together, or
none when it raises. What a transaction reads holds until it commits: either transactions are serialised, or
one that read stale values is refused and `run` starts `work` again, so `work` must have no other effects.
`Store.read` takes work that only reads; it may see a slightly older state, never half of a transaction.

**Threads.** `work` runs off the event loop, on a thread of the store's; a `Tx` is used by it alone and never
kept.

**Pages.** Lists take the last key that the caller has and a limit, and are stable while rows come and go.

**Revisions.** `update_*` compares the stored revision with that of the value it is given, less one, and
raises Conflict when another write came between; the caller builds the new value with `dataclasses.replace`.

Two implementations hold these promises, and one contract suite runs over both: `stores.memory` for tests and
`stores.sql` for everything else.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from libs.common.names import DeviceName, ReleaseName, TaskName, VersionName
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

T = TypeVar("T")


class Tx(Protocol):
    """One transaction. Methods raise AlreadyExists where a key is taken, and Conflict as said above."""

    # ---- tasks and versions ----
    def add_task(self, task: Task) -> None:
        """Store a new task."""
        ...

    def get_task(self, name: TaskName) -> Task | None:
        """Return a task, or None."""
        ...

    def list_tasks(self, tenant: str, after: str, limit: int) -> Sequence[Task]:
        """Return tasks by ascending id, those after `after`."""
        ...

    def add_version(self, version: Version) -> Version:
        """Store a new version; return it with its sequence."""
        ...

    def get_version(self, name: VersionName) -> Version | None:
        """Return a version, or None."""
        ...

    def replace_manifest(self, version: Version) -> None:
        """Store a version's manifest, which has other signatures now; nothing else of it changes."""
        ...

    def list_versions(self, task: TaskName, before: int | None, limit: int) -> Sequence[Version]:
        """Return versions by descending sequence, those below `before`."""
        ...

    def newest_events(self, task: TaskName) -> BlobRef | None:
        """Return the recorded events of the newest of a task's versions that was tried over some, or None."""
        ...

    # ---- trust roots ----
    def add_root(self, root: Root) -> None:
        """Store a new root."""
        ...

    def newest_root(self, tenant: str) -> Root | None:
        """Return the root with the largest version, or None."""
        ...

    def list_roots(self, tenant: str, first: int, limit: int) -> Sequence[Root]:
        """Return roots by ascending version, from `first` on."""
        ...

    # ---- devices ----
    def add_token(self, token: EnrolmentToken) -> None:
        """Store a new enrolment token."""
        ...

    def get_token(self, token_hash: bytes) -> EnrolmentToken | None:
        """Return a token by its hash, or None."""
        ...

    def use_token(self, token_hash: bytes) -> bool:
        """Take one use from a token; False when none is left. Two at once never take the same one."""
        ...

    def add_device(self, device: Device) -> None:
        """Store a new device; the tenant's fleet revision grows."""
        ...

    def get_device(self, name: DeviceName) -> Device | None:
        """Return a device, or None."""
        ...

    def update_device(self, device: Device) -> None:
        """Store what a person changed (attributes, revoked); the tenant's fleet revision grows."""
        ...

    def touch_device(self, device: Device) -> None:
        """Store what the device's own calls change (reported, last seen, set counter); no revision grows."""
        ...

    def list_devices(self, tenant: str, after: str, limit: int) -> Sequence[Device]:
        """Return devices by ascending id, those after `after`."""
        ...

    def scan_fleet(self, tenant: str, after: str, limit: int) -> Sequence[FleetRow]:
        """Return what selecting needs of the tenant's devices, by ascending id, those after `after`."""
        ...

    def fleet_revision(self, tenant: str) -> int:
        """Return a number that grows with each device added, changed or revoked; 0 at first."""
        ...

    def fleet_tenants(self) -> Sequence[str]:
        """Return every tenant that has devices."""
        ...

    # ---- releases and stages ----
    def add_release(self, release: Release) -> Release:
        """Store a new release; return it with its sequence. The tenant's release revision grows."""
        ...

    def get_release(self, name: ReleaseName) -> Release | None:
        """Return a release, or None."""
        ...

    def update_release(self, release: Release) -> None:
        """Store a changed release. The tenant's release revision grows."""
        ...

    def list_releases(self, tenant: str, before: int | None, limit: int) -> Sequence[Release]:
        """Return releases by descending sequence, those below `before`."""
        ...

    def releases_in_effect(self, tenant: str) -> Sequence[Release]:
        """Return all of the tenant's releases but those rolled back, in any order."""
        ...

    def running_releases(self) -> Sequence[ReleaseName]:
        """Return the running releases of all tenants."""
        ...

    def release_state_counts(self) -> Mapping[ReleaseState, int]:
        """Return how many releases of all tenants are in each state."""
        ...

    def release_revision(self, tenant: str) -> int:
        """Return a number that grows with each release added or changed; 0 at first."""
        ...

    def put_stage(self, stage: DeviceStage) -> bool:
        """Store a stage unless the device has reached it or a later one for the release; tell whether."""
        ...

    def put_running(self, release: Release, devices: Sequence[str]) -> None:
        """Store CONFIRMED for devices that run the version already and have no stage for the release."""
        ...

    def device_stages(self, device: DeviceName) -> Sequence[DeviceStage]:
        """Return a device's stages, of all releases."""
        ...

    def device_failures(self, device: DeviceName, limit: int) -> Sequence[VersionFailure]:
        """Return what failed on a device, those of the newest release first."""
        ...

    def drop_stages(self, device: DeviceName, releases: Collection[int]) -> None:
        """Forget a device's stages for the releases with these sequences."""
        ...

    def failed_stages(self, tenant: str, after: str, up_to: str) -> Sequence[DeviceStage]:
        """Return the FAILED stages of the tenant's devices with ids above `after` and up to `up_to`."""
        ...

    def stage_counts(self, release_sequence: int) -> Mapping[Stage, int]:
        """Return how many devices stand at each stage of a release."""
        ...

    def failed_count(self, release_sequence: int) -> int:
        """Return how many devices stand at FAILED for a release."""
        ...

    def failure_counts(self, release_sequence: int, limit: int) -> Sequence[FailureCount]:
        """Return how many devices failed for each reason, the most frequent first.

        Those of equal counts come by reason, as the store orders texts.
        """
        ...

    def add_report(self, device: DeviceName, report_id: str, now: datetime) -> bool:
        """Remember a report's id; False when it was known."""
        ...

    def prune(self, before: datetime) -> int:
        """Forget report ids and request ids older than `before`; return how many."""
        ...

    # ---- blobs ----
    def put_blob(self, tenant: str, blob: BlobRef, now: datetime) -> BlobRecord:
        """Store a reference, or touch the one that is there."""
        ...

    def get_blob(self, tenant: str, digest: str) -> BlobRecord | None:
        """Return a tenant's reference with its pin count, or None."""
        ...

    def pin_blobs(self, tenant: str, resource: str, digests: Collection[str]) -> None:
        """Pin references by a resource name; a pin that is there stays."""
        ...

    def unpin_blobs(self, tenant: str, resource: str, now: datetime) -> int:
        """Remove a resource's pins and touch what they pinned; return how many there were."""
        ...

    def drop_unpinned_blobs(self, before: datetime, limit: int) -> Sequence[str]:
        """Drop unpinned references touched before `before`; return their digests."""
        ...

    def blob_in_use(self, digest: str) -> bool:
        """Tell whether any tenant refers to a digest."""
        ...

    # ---- requests and audit ----
    def get_request(self, tenant: str, request_id: str) -> PastRequest | None:
        """Return an answered create, or None."""
        ...

    def add_request(self, request: PastRequest) -> None:
        """Remember an answered create."""
        ...

    def add_audit(self, entry: AuditEntry) -> None:
        """Append an entry; its sequence is the store's."""
        ...

    def list_audit(self, tenant: str, resource: str, before: int | None, limit: int) -> Sequence[AuditEntry]:
        """Return entries by descending sequence, those below `before`; of one resource unless it is empty."""
        ...


class Store(Protocol):
    """Runs transactions."""

    async def run(self, work: Callable[[Tx], T]) -> T:
        """Return what `work` returns; raise what it raises, with nothing written."""
        ...

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work`, which only reads, on one consistent state."""
        ...

    async def close(self) -> None:
        """Release what the store holds; nothing may be running."""
        ...
