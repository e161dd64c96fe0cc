"""Releases, stages and report ids in SQL."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select

from libs.common.errors import Conflict
from libs.common.names import DeviceName, ReleaseName, VersionName
from services.deployer.domain.model import (
    Counts,
    DeviceStage,
    FailureCount,
    Gate,
    Release,
    ReleaseState,
    Stage,
    StepStatus,
    VersionFailure,
)
from services.deployer.stores.sql.base import Part, dump, micros, moment
from services.deployer.stores.sql.schema import releases, reports, requests, stages

_STAGE_KEY = ["tenant", "device", "release_sequence"]


class ReleasesPart(Part):
    """See `services.deployer.store.Tx`."""

    def add_release(self, release: Release) -> Release:
        """See `Tx`."""
        values = {
            **_mutable(release),
            "tenant": release.name.tenant,
            "release": release.name.release,
            "task": release.version.task,
            "version": release.version.version,
            "policy_json": release.policy_json,
            "shares": dump(release.shares),
            "gate": _dump_gate(release.gate),
            "salt": release.salt,
            "create_time": micros(release.create_time),
            "creator": release.creator,
            "revision": release.revision,
        }
        stored = replace(release, sequence=self._insert(releases, values, release.name))
        self._bump("releases", release.name.tenant)
        return stored

    def get_release(self, name: ReleaseName) -> Release | None:
        """See `Tx`."""
        r = releases.c
        query = select(releases).where(r.tenant == name.tenant, r.release == name.release)
        row = self._c.execute(query).first()
        return None if row is None else _release(row)

    def update_release(self, release: Release) -> None:
        """See `Tx`."""
        r, name = releases.c, release.name
        changed = self._c.execute(
            releases.update()
            .where(r.tenant == name.tenant, r.release == name.release, r.revision == release.revision - 1)
            .values(**_mutable(release), revision=release.revision)
        )
        if changed.rowcount != 1:
            raise Conflict(f"{name}: was changed meanwhile; read it again", reason="STALE_ETAG")
        self._bump("releases", name.tenant)

    def list_releases(self, tenant: str, before: int | None, limit: int) -> Sequence[Release]:
        """See `Tx`."""
        query = select(releases).where(releases.c.tenant == tenant)
        if before is not None:
            query = query.where(releases.c.sequence < before)
        ordered = query.order_by(releases.c.sequence.desc()).limit(limit)
        return [_release(row) for row in self._c.execute(ordered)]

    def releases_in_effect(self, tenant: str) -> Sequence[Release]:
        """See `Tx`."""
        r = releases.c
        query = select(releases).where(r.tenant == tenant, r.state != ReleaseState.ROLLED_BACK.value)
        return [_release(row) for row in self._c.execute(query)]

    def running_releases(self) -> Sequence[ReleaseName]:
        """See `Tx`."""
        r = releases.c
        query = select(r.tenant, r.release).where(r.state == ReleaseState.RUNNING.value)
        return [ReleaseName(tenant, release) for tenant, release in self._c.execute(query)]

    def release_state_counts(self) -> Mapping[ReleaseState, int]:
        """See `Tx`."""
        query = select(releases.c.state, func.count()).group_by(releases.c.state)
        return {ReleaseState(state): count for state, count in self._c.execute(query)}

    def release_revision(self, tenant: str) -> int:
        """See `Tx`."""
        return self._revision("releases", tenant)

    def put_stage(self, stage: DeviceStage) -> bool:
        """See `Tx`."""
        insert = self._upsert(stages).values(**_stage_values(stage))
        told = {
            name: getattr(insert.excluded, name)
            for name in ("stage", "failure_reason", "failure_message", "time")
        }
        result = self._c.execute(
            insert.on_conflict_do_update(
                index_elements=_STAGE_KEY, set_=told, where=stages.c.stage < insert.excluded.stage
            ).returning(stages.c.stage)
        )
        return result.first() is not None

    def put_running(self, release: Release, devices: Sequence[str]) -> None:
        """See `Tx`."""
        if not devices:
            return
        name, version = release.name, release.version
        rows = [
            _stage_values(
                DeviceStage(
                    DeviceName(name.tenant, device),
                    release.sequence,
                    version.task,
                    version.version,
                    Stage.CONFIRMED,
                )
            )
            for device in devices
        ]
        self._c.execute(self._upsert(stages).on_conflict_do_nothing(index_elements=_STAGE_KEY), rows)

    def device_stages(self, device: DeviceName) -> Sequence[DeviceStage]:
        """See `Tx`."""
        s = stages.c
        query = select(stages).where(s.tenant == device.tenant, s.device == device.device)
        return [_stage(row) for row in self._c.execute(query.order_by(s.release_sequence))]

    def device_failures(self, device: DeviceName, limit: int) -> Sequence[VersionFailure]:
        """See `Tx`."""
        s, r = stages.c, releases.c
        query = (
            select(r.release, r.task, r.version, s.failure_reason, s.failure_message, s.time)
            .join_from(stages, releases, s.release_sequence == r.sequence)
            .where(s.tenant == device.tenant, s.device == device.device, s.stage == Stage.FAILED.value)
            .order_by(s.release_sequence.desc())
            .limit(limit)
        )
        return [
            VersionFailure(
                VersionName(device.tenant, task, version),
                ReleaseName(device.tenant, release),
                reason,
                message,
                moment(time),
            )
            for release, task, version, reason, message, time in self._c.execute(query)
        ]

    def drop_stages(self, device: DeviceName, releases: Collection[int]) -> None:
        """See `Tx`."""
        s = stages.c
        self._c.execute(
            stages.delete().where(
                s.tenant == device.tenant, s.device == device.device, s.release_sequence.in_(list(releases))
            )
        )

    def failed_stages(self, tenant: str, after: str, up_to: str) -> Sequence[DeviceStage]:
        """See `Tx`."""
        s = stages.c
        query = select(stages).where(
            s.tenant == tenant, s.device > after, s.device <= up_to, s.stage == Stage.FAILED.value
        )
        return [_stage(row) for row in self._c.execute(query)]

    def stage_counts(self, release_sequence: int) -> Mapping[Stage, int]:
        """See `Tx`."""
        query = (
            select(stages.c.stage, func.count())
            .where(stages.c.release_sequence == release_sequence)
            .group_by(stages.c.stage)
        )
        return {Stage(stage): count for stage, count in self._c.execute(query)}

    def failed_count(self, release_sequence: int) -> int:
        """See `Tx`."""
        s = stages.c
        return self._count(stages, s.release_sequence == release_sequence, s.stage == Stage.FAILED.value)

    def failure_counts(self, release_sequence: int, limit: int) -> Sequence[FailureCount]:
        """See `Tx`."""
        s, count = stages.c, func.count()
        query = (
            select(s.failure_reason, count)
            .where(s.release_sequence == release_sequence, s.stage == Stage.FAILED.value)
            .group_by(s.failure_reason)
            .order_by(count.desc(), s.failure_reason)
            .limit(limit)
        )
        return [FailureCount(reason, number) for reason, number in self._c.execute(query)]

    def add_report(self, device: DeviceName, report_id: str, now: datetime) -> bool:
        """See `Tx`."""
        insert = self._upsert(reports).values(
            tenant=device.tenant, device=device.device, report_id=report_id, create_time=micros(now)
        )
        # What the row count says of an insert differs between drivers; a returned row doesn't.
        result = self._c.execute(insert.on_conflict_do_nothing().returning(reports.c.report_id))
        return result.first() is not None

    def prune(self, before: datetime) -> int:
        """See `Tx`."""
        tables = (reports, requests)
        old = [table.delete().where(table.c.create_time < micros(before)) for table in tables]
        return sum(self._c.execute(delete).rowcount for delete in old)


def _mutable(release: Release) -> dict[str, Any]:
    """Return the columns that an update may change, the revision aside."""
    return {
        "state": release.state.value,
        "state_reason": release.state_reason,
        "steps": dump([_dump_step(step) for step in release.steps]),
        "resume_time": micros(release.resume_time),
        "end_time": micros(release.end_time),
        "end_counts": _dump_counts(release.end_counts),
    }


def _dump_gate(gate: Gate) -> str:
    value = dataclasses.asdict(gate)
    for name in ("soak_time", "step_timeout"):
        value[name] = value[name] // timedelta(microseconds=1)
    return dump(value)


def _load_gate(text: str) -> Gate:
    value = json.loads(text)
    for name in ("soak_time", "step_timeout"):
        value[name] = timedelta(microseconds=value[name])
    return Gate(**value)


def _dump_counts(counts: Counts | None) -> str | None:
    return None if counts is None else dump(dataclasses.asdict(counts))


def _load_counts(text: str | None) -> Counts | None:
    if text is None:
        return None
    value = json.loads(text)
    value["failures"] = tuple(FailureCount(**failure) for failure in value.get("failures", ()))
    return Counts(**value)


def _dump_step(step: StepStatus) -> dict[str, Any]:
    return {
        "share": step.share,
        "open_time": micros(step.open_time),
        "close_time": micros(step.close_time),
        "counts": _dump_counts(step.counts),
    }


def _load_step(value: Mapping[str, Any]) -> StepStatus:
    return StepStatus(
        value["share"], moment(value["open_time"]), moment(value["close_time"]), _load_counts(value["counts"])
    )


def _release(row: Row[Any]) -> Release:
    return Release(
        name=ReleaseName(row.tenant, row.release),
        version=VersionName(row.tenant, row.task, row.version),
        policy_json=row.policy_json,
        shares=tuple(json.loads(row.shares)),
        gate=_load_gate(row.gate),
        salt=row.salt,
        create_time=moment(row.create_time),
        creator=row.creator,
        state=ReleaseState(row.state),
        state_reason=row.state_reason,
        steps=tuple(_load_step(step) for step in json.loads(row.steps)),
        resume_time=moment(row.resume_time),
        end_time=moment(row.end_time),
        end_counts=_load_counts(row.end_counts),
        revision=row.revision,
        sequence=row.sequence,
    )


def _stage_values(stage: DeviceStage) -> dict[str, Any]:
    return {
        "tenant": stage.device.tenant,
        "device": stage.device.device,
        "release_sequence": stage.release_sequence,
        "task": stage.task,
        "version": stage.version,
        "stage": stage.stage.value,
        "failure_reason": stage.failure_reason,
        "failure_message": stage.failure_message,
        "time": micros(stage.time),
    }


def _stage(row: Row[Any]) -> DeviceStage:
    return DeviceStage(
        DeviceName(row.tenant, row.device),
        row.release_sequence,
        row.task,
        row.version,
        Stage(row.stage),
        row.failure_reason,
        row.failure_message,
        moment(row.time),
    )
