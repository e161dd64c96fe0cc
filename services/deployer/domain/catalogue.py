"""Tasks and their versions: what can be released."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Exhausted, Invalid, Precondition
from libs.common.names import TaskName, VersionName, shown
from libs.runtime.loading import load_plan
from libs.task.manifest import MAX_PLAN_BYTES, CheckedManifest
from libs.task.script import MAX_BYTES as MAX_SCRIPT_BYTES
from services.deployer.domain.blobs import Blobs
from services.deployer.domain.creates import earlier_answer, remember
from services.deployer.domain.missing import no_task, no_version
from services.deployer.domain.model import AuditEntry, BlobRef, Task, Version
from services.deployer.domain.preflight import Preflights, told
from services.deployer.domain.texts import check_text
from services.deployer.domain.trust import Notary, newest_root
from services.deployer.store import Store, Tx

MAX_DESCRIPTION_BYTES = 1024
MAX_TASKS = 1000
"""Of a tenant: a device's set holds one version of each, and devices take sets of at most this many."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """What to create."""

    name: TaskName
    description: str
    request_id: str = ""
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Publication:
    """What to publish."""

    task: TaskName
    signed: bytes
    """The serialised `isthmus.trust.v1.Signed`, made by authors."""
    events: BlobRef | None = None
    """Recorded events to try it over; None takes those of the newest version that had some."""
    validate_only: bool = False


class Catalogue:
    """What the task API does."""

    def __init__(
        self, store: Store, blobs: Blobs, notary: Notary, preflights: Preflights, clock: Clock
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._notary = notary
        self._preflights = preflights
        self._clock = clock
        # Plans may be large: one at a time.
        self._plan_in_memory = asyncio.Lock()

    async def create_task(self, new: NewTask, actor: str) -> Task:
        """Make a task.

        Raises:
            Invalid: for a description longer than 1024 bytes.
            AlreadyExists: when the tenant has a task of that id.
            Exhausted: when it has 1000.
        """
        check_text(new.description, "description", MAX_DESCRIPTION_BYTES)
        now = self._clock.now()
        tenant = new.name.tenant

        def work(tx: Tx) -> Task:
            earlier = earlier_answer(tx, tenant, new.request_id, new.fingerprint)
            if earlier is not None:
                return _task(tx, TaskName.parse(earlier))
            if tx.get_task(new.name) is not None:
                raise AlreadyExists(
                    f"{new.name}: exists already; publish versions to it", reason="TASK_EXISTS"
                )
            if len(tx.list_tasks(tenant, "", MAX_TASKS)) >= MAX_TASKS:
                raise Exhausted(
                    f"tenants/{tenant}: has {MAX_TASKS} tasks, the most there can be", reason="TASK_LIMIT"
                )
            task = Task(new.name, new.description, now)
            tx.add_task(task)
            remember(tx, tenant, new.request_id, new.fingerprint, task.name, now)
            tx.add_audit(AuditEntry(tenant, actor, "task.create", str(task.name), new.description[:200], now))
            return task

        return await self._store.run(work)

    async def get_task(self, name: TaskName) -> Task:
        """Return a task; raise NotFound."""
        return await self._store.read(lambda tx: _task(tx, name))

    async def list_tasks(self, tenant: str, after: str, limit: int) -> list[Task]:
        """Return tasks by ascending id, those after `after`."""
        return list(await self._store.read(lambda tx: tx.list_tasks(tenant, after, limit)))

    async def publish(self, new: Publication, actor: str) -> Version:
        """Check a signed manifest whole, have it tried, and keep it as a version unless `validate_only`.

        A version that is there already with the same payload isn't tried again; it gets those signatures by
        the root's authors that it lacks.

        Raises:
            NotFound: when there is no such task.
            Precondition: when the tenant has no root, it has expired, blobs aren't there, or the version
                failed its pre-flight.
            Untrusted: when too few of the root's authors signed.
            Invalid: when the manifest breaks a rule or a script doesn't compile (with its line).
            AlreadyExists: when the version was published with other bytes.
            Exhausted, Unavailable, Internal: when the simulator has no room, isn't there, or broke.
        """
        now = self._clock.now()
        task, signed = new.task, new.signed

        def verify(tx: Tx) -> tuple[CheckedManifest, str]:
            _task(tx, task)
            root = newest_root(tx, task.tenant, now)
            return self._notary.open_manifest(signed, root.signed)

        manifest, digest = await self._store.read(verify)
        if manifest.task != task.task:
            raise Invalid(
                f"manifest.task: {shown(manifest.task)} is not the parent's, {task.task!r}",
                reason="WRONG_TASK",
                metadata={"field": "manifest.task"},
            )
        await self._check_blobs(task.tenant, manifest)
        name = VersionName(task.tenant, manifest.task, manifest.version)
        preflight = None
        if await self._store.read(lambda tx: tx.get_version(name)) is None:
            preflight = await self._preflights.run(task, manifest.version, signed, new.events)
            now = self._clock.now()
        version = Version(
            name=name,
            manifest=signed,
            manifest_digest=digest,
            create_time=now,
            publisher=actor,
            total_bytes=sum(blob.size_bytes for blob in manifest.blobs),
            preflight=preflight,
        )
        needed = [blob.digest for blob in manifest.blobs]
        if preflight is not None and preflight.events is not None:
            needed.append(preflight.events.digest)

        def work(tx: Tx) -> Version:
            there = tx.get_version(version.name)
            if there is not None:
                if there.manifest_digest == digest:
                    return self._add_signatures(tx, there, new, actor, now)
                raise AlreadyExists(
                    f"{version.name}: was published with other content, and versions never change; "
                    "publish it under a new version",
                    reason="VERSION_EXISTS",
                )
            missing = [digest for digest in needed if tx.get_blob(task.tenant, digest) is None]
            if missing:
                raise _missing(missing)
            if new.validate_only:
                return version
            stored = tx.add_version(version)
            tx.pin_blobs(task.tenant, str(version.name), needed)
            detail = f"manifest {digest}, {version.total_bytes} bytes"
            if preflight is not None:
                detail += f"; {told(preflight)}"
            tx.add_audit(AuditEntry(task.tenant, actor, "version.publish", str(version.name), detail, now))
            return stored

        return await (self._store.read(work) if new.validate_only else self._store.run(work))

    def _add_signatures(self, tx: Tx, there: Version, new: Publication, actor: str, now: datetime) -> Version:
        tenant = there.name.tenant
        root = newest_root(tx, tenant, now)
        merged = self._notary.add_signatures(there.manifest, new.signed, root.signed)
        if merged == there.manifest:
            return there
        before, after = (
            self._notary.signers(manifest, root.signed).held for manifest in (there.manifest, merged)
        )
        there = replace(there, manifest=merged)
        if not new.validate_only:
            tx.replace_manifest(there)
            detail = (
                f"signature by {', '.join(sorted(after - before))} added; "
                f"{len(after)} hold under root {root.version}"
            )
            tx.add_audit(AuditEntry(tenant, actor, "version.sign", str(there.name), detail, now))
        return there

    async def _check_blobs(self, tenant: str, manifest: CheckedManifest) -> None:
        missing = []
        digests = [blob.digest for blob in manifest.blobs]
        records = await self._store.read(lambda tx: [tx.get_blob(tenant, digest) for digest in digests])
        for blob, record in zip(manifest.blobs, records, strict=True):
            if record is None:
                missing.append(blob.digest)
            elif record.blob.size_bytes != blob.size_bytes:
                raise Invalid(
                    f"manifest: says {blob.digest} has {blob.size_bytes} bytes; "
                    f"it has {record.blob.size_bytes}; sign a manifest with the right size",
                    reason="SIZE_MISMATCH",
                )
        if missing:
            raise _missing(missing)
        for phase in manifest.phases:
            phase.compile(await self._blobs.load(tenant, phase.script.digest, MAX_SCRIPT_BYTES))
        for plan in manifest.plans:
            async with self._plan_in_memory:
                data = await self._blobs.load(tenant, plan.blob.digest, MAX_PLAN_BYTES)
                await asyncio.to_thread(load_plan, data, plan.path)

    async def get_version(self, name: VersionName) -> Version:
        """Return a version; raise NotFound."""

        def work(tx: Tx) -> Version:
            version = tx.get_version(name)
            if version is None:
                raise no_version(tx, name)
            return version

        return await self._store.read(work)

    async def list_versions(self, task: TaskName, before: int | None, limit: int) -> list[Version]:
        """Return versions, the newest first; raise NotFound when there is no such task."""

        def work(tx: Tx) -> list[Version]:
            _task(tx, task)
            return list(tx.list_versions(task, before, limit))

        return await self._store.read(work)


def _task(tx: Tx, name: TaskName) -> Task:
    task = tx.get_task(name)
    if task is None:
        raise no_task(tx, name)
    return task


def check_trusted(tx: Tx, notary: Notary, version: Version, now: datetime) -> None:
    """Raise Precondition unless devices that have the tenant's newest root would believe a version."""
    root = newest_root(tx, version.name.tenant, now)
    signers = notary.signers(version.manifest, root.signed)
    if signers.enough:
        return
    raise Precondition(
        f"{version.name}: root {root.version} takes signatures by {signers.threshold} of its authors "
        f"({_keys(signers.authors)}), and of those who signed the version ({_keys(signers.signed)}) "
        f"{len(signers.held)} count, so that devices would refuse it; publish the same version again, signed "
        "with a current author key, which adds the signature (isthmus task publish)",
        reason="VERSION_UNTRUSTED",
        metadata={"version": str(version.name), "authors": ",".join(sorted(signers.authors))},
    )


def _keys(ids: Collection[str]) -> str:
    # Error texts have room for some; whoever needs all reads the root.
    shown_ids = ", ".join(sorted(each[:32] for each in ids)[:5])
    return shown_ids + (f" and {len(ids) - 5} more" if len(ids) > 5 else "") or "none"


def _missing(digests: list[str]) -> Precondition:
    shown_digests = ", ".join(digests[:5]) + (f" and {len(digests) - 5} more" if len(digests) > 5 else "")
    return Precondition(
        f"manifest: these blobs aren't there; upload them first: {shown_digests}",
        reason="MISSING_BLOBS",
        metadata={"digests": ",".join(digests[:64])},
    )
