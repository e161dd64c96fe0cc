"""The pull half of push-then-pull: what a device should run, and what it says became of it."""

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.common.clock import Clock
from libs.common.errors import Invalid, NotFound, Precondition
from libs.common.names import DeviceName, ReleaseName, check_id, check_version, shown
from libs.task.manifest import CheckedManifest
from libs.task.profile import profile_digest
from libs.task.versions import parse_agent_version
from services.deployer.domain.fleet import known_device
from services.deployer.domain.model import (
    Device,
    DeviceSet,
    DeviceStage,
    ReleaseState,
    Root,
    SetEntry,
    Stage,
    StageReport,
    Version,
)
from services.deployer.domain.rollout import Books, Offer, failures_of
from services.deployer.domain.signals import Meter, Signals
from services.deployer.domain.texts import check_text
from services.deployer.domain.trust import Notary, newest_root
from services.deployer.store import Store, Tx

MAX_PROFILE = 1000
MAX_REPORTS = 256
MAX_REPORT_ID_BYTES = 64
MAX_MESSAGE_BYTES = 4096
MAX_ROOTS = 64
MAX_ANSWER_BYTES = 3 * 1024 * 1024
"""Set, roots and manifests of one plan, so that it stays below the limit of a message. For what is left out a
device asks again: for roots once it has taken the others, for manifests once its profile holds the others."""
_FRAMING_BYTES = 8
"""What a message adds to each part of it: a tag and a length."""
_SEEN_EVERY = timedelta(seconds=60)
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_PYTHON = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
INCOMPATIBLE = "INCOMPATIBLE"
UNKNOWN = "UNKNOWN"
"""What a failure without a reason counts under."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a device asks with."""

    profile: tuple[str, ...]
    root_version: int
    agent_version: str
    python_version: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What it gets. Bytes are serialised `isthmus.trust.v1.Signed`."""

    device_set: bytes
    manifests: tuple[bytes, ...]
    remove: tuple[str, ...]
    roots: tuple[bytes, ...]


class Pull:
    """What the pull API does, for the device that calls."""

    def __init__(
        self,
        store: Store,
        books: Books,
        notary: Notary,
        signals: Signals,
        meter: Meter,
        clock: Clock,
        *,
        set_ttl: timedelta,
    ) -> None:
        """Sign sets that expire after `set_ttl`."""
        self._store = store
        self._books = books
        self._notary = notary
        self._signals = signals
        self._meter = meter
        self._clock = clock
        self._set_ttl = set_ttl
        # Keyed by the manifests themselves, of up to 1 MiB each: the few that devices are moving to.
        self._manifest = functools.lru_cache(maxsize=32)(notary.read_manifest)

    async def plan(self, name: DeviceName, wish: Wish) -> Plan:
        """Return the signed set of what the device should run, and what it needs for it.

        A version that can't run on the device, by its agent's or Python's version, counts as failed there.

        Raises:
            Invalid: for a malformed profile or version.
            NotFound: when the device is gone.
            Forbidden: when it is revoked.
            Precondition: when the tenant has no trust root.
        """
        profile = check_profile(wish.profile)
        parse_agent_version(wish.agent_version, "agent_version")
        if not _PYTHON.fullmatch(wish.python_version):
            raise Invalid(
                f"python_version: {shown(wish.python_version)} is not MAJOR.MINOR, such as 3.11",
                reason="BAD_VERSION",
            )
        now = self._clock.now()

        def work(
            tx: Tx,
        ) -> tuple[Device, Device, list[tuple[Offer, Version]], list[ReleaseName], list[Root], int]:
            device = known_device(tx, name)
            newest = newest_root(tx, name.tenant)
            chosen, failed = self._choose(tx, device, profile, wish, now)
            digest = _set_digest(_entries(chosen))
            after = replace(device, reported=profile)
            if digest != device.set_digest:
                after = replace(after, set_counter=device.set_counter + 1, set_digest=digest)
            if after != device or now - device.last_seen_time >= _SEEN_EVERY:
                after = replace(after, last_seen_time=now)
                tx.touch_device(after)
            roots = tx.list_roots(name.tenant, wish.root_version + 1, MAX_ROOTS)
            return device, after, chosen, failed, list(roots), newest.version

        before, after, chosen, failed, newer, newest_version = await self._store.run(work)
        if before.reported != after.reported or failed:
            self._signals.device_changed(name)
        self._signals.releases_changed(failed)
        for _ in failed:
            self._meter.reported(Stage.FAILED)
        entries = _entries(chosen)
        signed = self._notary.sign_set(DeviceSet(name, after.set_counter, now, now + self._set_ttl, entries))
        self._meter.set_signed()
        wanted = {offer.entry for offer, _ in chosen}
        room = MAX_ANSWER_BYTES - len(signed)
        roots = _fitting([root.signed for root in newer], room)
        lacking = [version.manifest for offer, version in chosen if offer.entry not in profile]
        if roots and newer[len(roots) - 1].version < newest_version:
            # By a root in the middle a device might find a good manifest to be nobody's, for good.
            lacking = []
        return Plan(
            device_set=signed,
            manifests=_fitting(lacking, room - sum(map(len, roots))),
            remove=tuple(entry for entry in profile if entry not in wanted),
            roots=roots,
        )

    def _choose(
        self, tx: Tx, device: Device, profile: Sequence[str], wish: Wish, now: datetime
    ) -> tuple[list[tuple[Offer, Version]], list[ReleaseName]]:
        """Return what the device should run, leaving out, as failed, what can't run there."""
        book = self._books.of(tx, device.name.tenant)
        failed: list[ReleaseName] = []
        while True:
            failures = failures_of(tx.device_stages(device.name))
            chosen = []
            again = False
            for offer in book.wanted(device.name.device, device.attributes, failures):
                version = tx.get_version(offer.release.version)
                assert version is not None, "versions are never removed"
                why = None if offer.entry in profile else self._why_not(version, wish)
                if why is None:
                    chosen.append((offer, version))
                    continue
                stage = _stage(device.name, offer, Stage.FAILED, INCOMPATIBLE, why, now)
                again = tx.put_stage(stage) or again
                failed.append(offer.release.name)
            if not again:
                return chosen, failed

    def _why_not(self, version: Version, wish: Wish) -> str | None:
        manifest: CheckedManifest = self._manifest(version.manifest)
        try:
            manifest.check_runs_on(wish.agent_version, wish.python_version)
        except Precondition as error:
            return error.message
        return None

    async def report(self, name: DeviceName, reports: Sequence[StageReport], profile: Sequence[str]) -> None:
        """Keep a device's stage reports, durably; each counts once, however often it comes.

        Reports on releases that are gone or don't count the device are accepted and not counted: a device
        must be able to get rid of what it has to say.

        Raises:
            Invalid: for a malformed report or profile.
            NotFound: when the device is gone.
            Forbidden: when it is revoked.
        """
        known = check_profile(profile)
        if len(reports) > MAX_REPORTS:
            raise Invalid(
                f"reports: has {len(reports)}; send at most {MAX_REPORTS} at once", reason="TOO_MANY"
            )
        for index, report in enumerate(reports):
            _check_report(report, f"reports[{index}]", name)
        now = self._clock.now()

        def work(tx: Tx) -> tuple[list[Stage], set[ReleaseName]]:
            device = known_device(tx, name)
            counted: list[Stage] = []
            touched: set[ReleaseName] = set()
            for report in reports:
                if not tx.add_report(name, report.report_id, now):
                    continue
                offer = self._counts(tx, device, report)
                if offer is None:
                    continue
                reason = report.failure_reason or (UNKNOWN if report.stage is Stage.FAILED else "")
                stage = _stage(name, offer, report.stage, reason, report.failure_message, now)
                if tx.put_stage(stage):
                    counted.append(report.stage)
                    touched.add(offer.release.name)
            tx.touch_device(replace(device, reported=known, last_seen_time=now))
            return counted, touched

        counted, touched = await self._store.run(work)
        self._signals.device_changed(name)
        self._signals.releases_changed(touched)
        for stage in counted:
            self._meter.reported(stage)

    def _counts(self, tx: Tx, device: Device, report: StageReport) -> Offer | None:
        """Return the release that a report counts for, or None."""
        release = tx.get_release(ReleaseName.parse(report.release))
        if release is None or release.state is ReleaseState.ROLLED_BACK:
            return None
        if (release.version.task, release.version.version) != (report.task, report.version):
            return None
        offer = Offer.of(release)
        if not offer.selects(device.name.device, device.attributes):
            return None
        if report.stage is Stage.FAILED or release.state.ended:
            return offer
        book = self._books.of(tx, device.name.tenant)
        stages = tx.device_stages(device.name)
        return offer if book.counts(offer, device.name.device, device.attributes, stages) else None


def check_profile(profile: Sequence[str]) -> tuple[str, ...]:
    """Return a profile sorted; raise Invalid for a malformed or doubled entry, or more than 1000."""
    if len(profile) > MAX_PROFILE:
        raise Invalid(
            f"profile: has {len(profile)} entries; at most {MAX_PROFILE} are taken", reason="TOO_MANY"
        )
    profile_digest(profile)
    return tuple(sorted(profile))


def _check_report(report: StageReport, where: str, device: DeviceName) -> None:
    if not report.report_id:
        raise Invalid(f"{where}.report_id: is missing; draw one for each report", reason="BAD_REPORT_ID")
    check_text(report.report_id, f"{where}.report_id", MAX_REPORT_ID_BYTES)
    check_id(report.task, f"{where}.task")
    check_version(report.version, f"{where}.version")
    release = ReleaseName.parse(report.release, f"{where}.release")
    if release.tenant != device.tenant:
        raise NotFound(f"{where}.release: {release}: not found", reason="NOT_FOUND")
    if report.failure_reason and not _REASON.fullmatch(report.failure_reason):
        raise Invalid(
            f"{where}.failure_reason: {shown(report.failure_reason)} is not UPPER_SNAKE "
            "of at most 64 characters",
            reason="BAD_REASON",
        )
    check_text(report.failure_message, f"{where}.failure_message", MAX_MESSAGE_BYTES)


def _stage(
    name: DeviceName, offer: Offer, stage: Stage, reason: str, message: str, now: datetime
) -> DeviceStage:
    version, sequence = offer.release.version, offer.release.sequence
    return DeviceStage(name, sequence, version.task, version.version, stage, reason, message, now)


def _entries(chosen: Sequence[tuple[Offer, Version]]) -> tuple[SetEntry, ...]:
    return tuple(
        SetEntry(v.name.task, v.name.version, v.manifest_digest, str(offer.release.name))
        for offer, v in chosen
    )


def _set_digest(entries: Sequence[SetEntry]) -> bytes:
    """Return what tells one set's content from another's."""
    content = [[e.task, e.version, e.manifest_digest, e.release] for e in entries]
    return hashlib.sha256(json.dumps(content).encode()).digest()


def _fitting(parts: Sequence[bytes], most_bytes: int) -> tuple[bytes, ...]:
    """Return the first parts that fit, and at least one: each plan must lead on."""
    total = 0
    fitting: list[bytes] = []
    for part in parts:
        total += len(part) + _FRAMING_BYTES
        if total > most_bytes and fitting:
            break
        fitting.append(part)
    return tuple(fitting)
