"""Tasks, versions and roots in SQL."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, select

from libs.common.names import TaskName, VersionName
from services.deployer.domain.model import BlobRef, Root, Task, Version
from services.deployer.stores.sql import preflights
from services.deployer.stores.sql.base import Part, micros, moment
from services.deployer.stores.sql.schema import roots, tasks, versions


class CataloguePart(Part):
    """See `services.deployer.store.Tx`."""

    def add_task(self, task: Task) -> None:
        """See `Tx`."""
        values = {
            "tenant": task.name.tenant,
            "task": task.name.task,
            "description": task.description,
            "create_time": micros(task.create_time),
            "revision": task.revision,
        }
        self._insert(tasks, values, task.name)

    def get_task(self, name: TaskName) -> Task | None:
        """See `Tx`."""
        found = self._c.execute(
            select(tasks).where(tasks.c.tenant == name.tenant, tasks.c.task == name.task)
        ).first()
        return None if found is None else _task(found)

    def list_tasks(self, tenant: str, after: str, limit: int) -> Sequence[Task]:
        """See `Tx`."""
        query = select(tasks).where(tasks.c.tenant == tenant, tasks.c.task > after)
        return [_task(row) for row in self._c.execute(query.order_by(tasks.c.task).limit(limit))]

    def add_version(self, version: Version) -> Version:
        """See `Tx`."""
        values = {
            "tenant": version.name.tenant,
            "task": version.name.task,
            "version": version.name.version,
            "manifest": version.manifest,
            "manifest_digest": version.manifest_digest,
            "create_time": micros(version.create_time),
            "publisher": version.publisher,
            "total_bytes": version.total_bytes,
            **preflights.columns(version.preflight),
        }
        return replace(version, sequence=self._insert(versions, values, version.name))

    def get_version(self, name: VersionName) -> Version | None:
        """See `Tx`."""
        v = versions.c
        query = select(versions).where(
            v.tenant == name.tenant, v.task == name.task, v.version == name.version
        )
        found = self._c.execute(query).first()
        return None if found is None else _version(found)

    def replace_manifest(self, version: Version) -> None:
        """See `Tx`."""
        v, name = versions.c, version.name
        own = (v.tenant == name.tenant) & (v.task == name.task) & (v.version == name.version)
        self._c.execute(versions.update().where(own).values(manifest=version.manifest))

    def list_versions(self, task: TaskName, before: int | None, limit: int) -> Sequence[Version]:
        """See `Tx`."""
        v = versions.c
        query = select(versions).where(v.tenant == task.tenant, v.task == task.task)
        if before is not None:
            query = query.where(v.sequence < before)
        return [_version(row) for row in self._c.execute(query.order_by(v.sequence.desc()).limit(limit))]

    def newest_events(self, task: TaskName) -> BlobRef | None:
        """See `Tx`."""
        v = versions.c
        query = select(v.events_digest, v.events_bytes).where(
            v.tenant == task.tenant, v.task == task.task, v.events_digest.is_not(None)
        )
        found = self._c.execute(query.order_by(v.sequence.desc()).limit(1)).first()
        return None if found is None else BlobRef(found.events_digest, found.events_bytes)

    def add_root(self, root: Root) -> None:
        """See `Tx`."""
        values = {
            "tenant": root.tenant,
            "version": root.version,
            "signed": root.signed,
            "expire_time": micros(root.expire_time),
        }
        self._insert(roots, values, f"root {root.version}")

    def newest_root(self, tenant: str) -> Root | None:
        """See `Tx`."""
        query = select(roots).where(roots.c.tenant == tenant).order_by(roots.c.version.desc())
        found = self._c.execute(query.limit(1)).first()
        return None if found is None else _root(found)

    def list_roots(self, tenant: str, first: int, limit: int) -> Sequence[Root]:
        """See `Tx`."""
        query = select(roots).where(roots.c.tenant == tenant, roots.c.version >= first)
        return [_root(row) for row in self._c.execute(query.order_by(roots.c.version).limit(limit))]


def _task(row: Row[Any]) -> Task:
    return Task(TaskName(row.tenant, row.task), row.description, moment(row.create_time), row.revision)


def _version(row: Row[Any]) -> Version:
    return Version(
        name=VersionName(row.tenant, row.task, row.version),
        manifest=row.manifest,
        manifest_digest=row.manifest_digest,
        create_time=moment(row.create_time),
        publisher=row.publisher,
        total_bytes=row.total_bytes,
        sequence=row.sequence,
        preflight=preflights.value(row.preflight, row.events_digest, row.events_bytes),
    )


def _root(row: Row[Any]) -> Root:
    return Root(row.tenant, row.version, row.signed, moment(row.expire_time))
