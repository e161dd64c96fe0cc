"""What is installed and runs: verified versions, the trigger trie, the task VM, kept in step with the store.

Every change of what runs happens under one lock, in the order store, trie, VM. The loop that feeds events to
the trie holds the same lock, so that an activation falls between two batches of events, at a place in their
order that the store knows: after a restart each trigger is inserted at that place again.
"""

import asyncio
import itertools
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from isthmus.deployer.v1 import manifest_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.backoff import backoff
from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Unavailable
from libs.common.rand import Randomness
from libs.task.manifest import CheckedManifest, check_manifest
from libs.task.profile import profile_digest
from libs.trust.digests import sha256_of
from libs.trust.errors import Untrusted
from services.device_agent.domain.failures import ScriptNames, reportable
from services.device_agent.domain.rollout import Entry, Verdict, Version, judge
from services.device_agent.domain.triggers import Match, TriggerIndex
from services.device_agent.files import VersionFiles
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import events as event_store
from services.device_agent.store import frames as frame_store
from services.device_agent.store import versions as version_store
from services.device_agent.store.bad_rows import BAD_ROW
from services.device_agent.store.database import Database
from services.device_agent.store.events import StoredEvent
from services.device_agent.store.versions import Moment
from services.device_agent.vm import LoadedTask, Model, Outcome, Phase, RunLimits, Script, TaskVm

_log = logging.getLogger("isthmus.agent")

_REPLAY_BATCH = 1000
_LOAD_RETRY_S = 0.1
_LOAD_RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class Installed:
    """A version whose files are in place and verified."""

    entry: Entry
    manifest: CheckedManifest

    @property
    def key(self) -> str:
        """`task@version`."""
        return self.manifest.key


class Tasks:
    """See the module's text.

    Attributes:
        index: the trie; use it under `lock` only.
        lock: held by whoever changes what runs or feeds the trie.
        installed: every version with verified files, by key.
        versions: the versions as the store had them when they last changed.
        profile: `task@version` of what runs, sorted.
        profile_digest: its digest.
        files: the versions' folders.
        changed: rings when any of this has changed.
    """

    def __init__(
        self,
        database: Database,
        files: VersionFiles,
        vm: TaskVm,
        clock: Clock,
        randomness: Randomness,
        problems: Problems,
    ) -> None:
        self.index = TriggerIndex()
        self.lock = asyncio.Lock()
        self.installed: dict[str, Installed] = {}
        self.versions: list[Version] = []
        self.profile: list[str] = []
        self.profile_digest = profile_digest(())
        self.changed = Bell()
        self._database = database
        self.files = files
        self._vm = vm
        self._clock = clock
        self._random = randomness
        self._problems = problems
        self._inserted: set[str] = set()
        self._names: dict[str, ScriptNames] = {}
        self._replayed = False

    def moment(self) -> Moment:
        """Return now, with an id for the report that it may owe."""
        return Moment(self._clock.now().timestamp(), self._random.id())

    def running(self) -> dict[str, Version]:
        """Return the versions that run, by task."""
        return {version.task: version for version in self.versions if version.state.runs}

    def horizon_s(self) -> float:
        """Return how far back triggers and windows in use look, in seconds."""
        windows = (installed.manifest.pipeline.horizon_s for installed in self.installed.values())
        return max([self.index.horizon_s, *windows])

    def pending_limits(self) -> dict[str, int]:
        """Return how many runs of each installed task may wait."""
        manifests = (installed.manifest for installed in self.installed.values())
        return {manifest.task: manifest.limits.pending_count for manifest in manifests}

    # ---- starting ----

    async def start(self) -> None:
        """Verify what is installed, load it, and rebuild the trie's state from the events.

        A version whose files don't verify is moved away and never runs; the one before it takes over.
        """
        for version in await self._database.run(version_store.list_versions):
            if version.state.has_files:
                await self._verify(version)
        async with self.lock:
            await self._refresh()
            await self._load_running()
            await self._judge_running()
            await self._replay()

    async def _verify(self, version: Version) -> None:
        signed = await self._database.run(
            lambda connection: version_store.read_manifest(connection, version.task, version.version)
        )
        try:
            manifest = _stored_manifest(signed, version)
            await asyncio.to_thread(self.files.verify, manifest)
        except Error as error:
            await asyncio.to_thread(self.files.quarantine, version.task, version.version)
            await self._database.run(
                lambda connection: version_store.forget(connection, version.task, version.version)
            )
            text = f"doesn't verify, is in quarantine and doesn't run: {error.message}"
            self._problems.set(f"version {version.key}", text, error.reason)
            return
        entry = Entry(version.task, version.version, version.manifest_digest, version.release)
        self.installed[version.key] = Installed(entry, manifest)

    async def _load_running(self) -> None:
        loaded: set[str] = set()
        while left := [v for v in self.versions if v.state.has_files and v.key not in loaded]:
            version = left[0]
            loaded.add(version.key)
            outcome = await self.load(self.installed[version.key].manifest)
            if outcome.ok:
                continue
            # Its Python has changed under it, for example.
            _log.error("%s doesn't load", version.key, extra={"detail": outcome.message})
            if version.state.runs:
                manifest = self.installed[version.key].manifest
                reason = outcome.reason or "LOAD_ERROR"
                report = await self.reportable(manifest, reason, outcome.message)
                await self._roll_back(version, reason, report)
            else:
                await self._database.run(_forgetter([version]))
            await self._refresh()

    async def _judge_running(self) -> None:
        """Give up what had failed too often when the agent ended before it could."""
        for version in self.running().values():
            health = self.installed[version.key].manifest.health
            if judge(version, health) is Verdict.ROLL_BACK:
                await self._give_up(version)
        await self._refresh()

    async def _replay(self) -> None:
        # Each trigger is inserted where it was: it sees the events after its activation and no others.
        self.index, self._inserted = TriggerIndex(), set()  # also when a full disk stopped it half-way
        waiting = sorted(self.running().values(), key=lambda version: version.activated_seq)
        probe = TriggerIndex()
        for version in waiting:
            probe.insert(version.key, self.installed[version.key].manifest.trigger)
        horizon_s = probe.horizon_s
        done = await self._database.run(event_store.processed_seq)
        after = await self._database.run(lambda connection: event_store.replay_start(connection, horizon_s))
        while batch := await self._read_events(after, done):
            for stored in batch:
                while waiting and waiting[0].activated_seq < stored.seq:
                    self._insert(waiting.pop(0))
                self.advance(stored)
            after = batch[-1].seq
        for version in waiting:
            self._insert(version)
        self._replayed = True

    def advance(self, stored: StoredEvent) -> Sequence[Match]:
        """Feed an event to the trie and return what it completes; call under the lock.

        An event that the trie can't take completes nothing.
        """
        try:
            return list(self.index.advance(stored.event))
        except BAD_ROW:
            _log.exception("event %d can't be matched and is passed over", stored.seq)
            self._problems.set("triggers", f"event {stored.seq} can't be matched; see the log", "BAD_EVENT")
            return []

    async def _read_events(self, after: int, up_to: int) -> list[StoredEvent]:
        return await self._database.run(
            lambda connection: event_store.read_events(connection, after, _REPLAY_BATCH, up_to)
        )

    def _insert(self, version: Version) -> None:
        self._inserted.add(version.key)
        self.index.insert(version.key, self.installed[version.key].manifest.trigger)

    # ---- changing ----

    async def load(self, manifest: CheckedManifest) -> Outcome:
        """Load a verified version's scripts in the VM; waits for as long as the VM has no room.

        Raises:
            OSError: when its files can't be read.
        """
        task = await asyncio.to_thread(self._loaded_task, manifest)
        for attempt in itertools.count():
            try:
                outcome = await self._vm.load(task)
            except (Exhausted, Unavailable) as error:
                self._problems.set("task VM", error.message, error.reason)
                await self._clock.sleep(
                    backoff(attempt, randomness=self._random, base_s=_LOAD_RETRY_S, cap_s=_LOAD_RETRY_MAX_S)
                )
            else:
                self._problems.clear("task VM")
                return outcome
        raise AssertionError("it is tried until it returns")

    async def reportable(self, manifest: CheckedManifest, reason: str, message: str) -> str:
        """Return what the cloud may be told of a failure of a version whose files are in place."""
        if manifest.key not in self._names:
            self._names[manifest.key] = await asyncio.to_thread(self.files.script_names, manifest)
        return reportable(reason, message, self._names[manifest.key])

    def _loaded_task(self, manifest: CheckedManifest) -> LoadedTask:
        folder = self.files.folder(manifest.task, manifest.version)
        scripts = tuple(
            Script(
                phase=Phase(phase.kind),
                path=phase.path,
                entry_point=phase.entry_point,
                source=(folder / phase.path).read_bytes(),
                digest=phase.script.digest,
            )
            for phase in manifest.phases
        )
        limits, model = manifest.limits, manifest.model
        return LoadedTask(
            task=manifest.task,
            version=manifest.version,
            scripts=scripts,
            model=None if model is None else Model(model.path, model.blob.digest),
            resource_root=folder.absolute(),
            resources=tuple(resource.path for resource in manifest.resources),
            limits=RunLimits(limits.wall_time_s, limits.memory_bytes, limits.pending_count),
            endpoints={each.model: each.datatypes for each in manifest.endpoints.values()},
        )

    async def discard(self, manifest: CheckedManifest) -> None:
        """Unload a version that was loaded and won't run."""
        if manifest.key not in self.installed:
            self._names.pop(manifest.key, None)
            await self._vm.unload(manifest.task, manifest.version)

    async def activate(
        self, ready: Sequence[Installed], remove: Sequence[str], unstage: Sequence[Version] = ()
    ) -> None:
        """Let staged, verified, loaded versions run, removed tasks and staged versions go: all or nothing.

        Raises:
            Exhausted: when the disk is full; nothing has changed.
        """
        epochs = {
            f"{installed.manifest.task}/{stream}": self._random.bytes(16)
            for installed in ready
            for stream in installed.manifest.uploads
        }
        entries = [(installed.entry, self.moment()) for installed in ready]

        def change(connection: sqlite3.Connection) -> None:
            for task in remove:
                version_store.remove_task(connection, task)
            for version in unstage:
                version_store.forget(connection, version.task, version.version)
            version_store.activate(connection, entries, epochs)

        async with self.lock:
            await self._database.run(change)
            for installed in ready:
                self.installed[installed.key] = installed
            await self._refresh()
        for installed in ready:
            _log.info("%s runs now", installed.key, extra={"release": installed.entry.release})

    async def drop_streams(self) -> int:
        """Forget the streams that nothing here uses any more and that are empty; return how many went."""
        async with self.lock:
            used = {
                f"{installed.manifest.task}/{stream}"
                for installed in self.installed.values()
                for stream in installed.manifest.uploads
            }
            return await self._database.run(lambda connection: frame_store.drop_streams(connection, used))

    async def give_up(self, task: str, version: str) -> None:
        """Give up a version for its failed runs, if it still runs; the one before it runs again.

        Raises:
            Exhausted: when the disk is full; nothing has changed.
        """
        async with self.lock:
            await self._refresh()
            running = self.running().get(task)
            if running is not None and running.version == version:
                await self._give_up(running)
                await self._refresh()

    async def _give_up(self, version: Version) -> None:
        message = f"{version.failures_in_a_row} failures in a row; the last: {version.failure_message}"
        await self._roll_back(version, version.failure_reason, message)

    async def _roll_back(self, version: Version, reason: str, message: str) -> None:
        moment = self.moment()
        previous = await self._database.run(
            lambda connection: version_store.roll_back(
                connection, version.task, version.version, reason, message, moment
            )
        )
        _log.warning(
            "%s is given up (%s), %s runs instead",
            version.key,
            reason,
            previous or "nothing",
            extra={"reason": reason, "detail": message},
        )

    async def refresh(self) -> None:
        """Read again what is installed, after a change of states elsewhere."""
        async with self.lock:
            await self._refresh()

    async def refresh_counts(self) -> None:
        """Read the versions' counts again."""
        self.versions = await self._database.run(version_store.list_versions, durable=False)

    async def _refresh(self) -> None:
        """Bring trie and VM in step with the store. Call under the lock."""
        self.versions = await self._database.run(version_store.list_versions)
        profile = sorted(version.key for version in self.versions if version.state.runs)
        with_files = {version.key for version in self.versions if version.state.has_files}
        for key in self.installed.keys() - with_files:
            manifest = self.installed.pop(key).manifest
            self._names.pop(key, None)
            await self._vm.unload(manifest.task, manifest.version)
        if self._replayed:
            for key in self._inserted - set(profile):
                self.index.remove(key)
                self._inserted.discard(key)
            for version in self.running().values():
                if version.key not in self._inserted:
                    self._insert(version)
        if profile != self.profile:
            self.profile = profile
            self.profile_digest = profile_digest(profile)
        self.changed.ring()


def _forgetter(versions: Sequence[Version]) -> Callable[[sqlite3.Connection], None]:
    def forget(connection: sqlite3.Connection) -> None:
        for version in versions:
            version_store.forget(connection, version.task, version.version)

    return forget


def _stored_manifest(signed: bytes, version: Version) -> CheckedManifest:
    """Return a version's manifest out of the store; raise Untrusted unless it is the one that was trusted."""
    try:
        payload = trust_pb2.Signed.FromString(signed).payload
        if sha256_of(payload) != version.manifest_digest:
            raise Untrusted(f"{version.key}: the manifest changed in the store", reason="DIGEST_MISMATCH")
        return check_manifest(manifest_pb2.TaskManifest.FromString(payload))
    except DecodeError:
        raise Untrusted(f"{version.key}: the manifest in the store is damaged", reason="MALFORMED") from None
