"""Pulling: ask what to run, believe only what is signed, get it, check it, and switch over in one step.

    Plan ──► roots, set (trusted?) ──► for each new version: manifest (trusted?) ──► space ──► blobs (digests)
         ──► folder ──► STAGED ──► load check ──► all that is ready: ACTIVE in one transaction ──► clear away

What goes wrong with one version stops only that version. There are three kinds of wrong: what may pass (the
network, a full disk) is tried again later, with nothing changed; what the version itself is to blame for is
reported FAILED and not tried again; what isn't to be believed installs nothing and is shown as a problem.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping

from isthmus.deployer.v1 import pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.clock import Clock
from libs.common.errors import Error, Internal, Invalid, NotFound, OutOfRange, Precondition
from libs.common.rand import Randomness
from libs.common.telemetry import Telemetry
from libs.task.manifest import Blob, CheckedManifest, check_manifest
from libs.trust.digests import sha256_of
from libs.trust.errors import Untrusted
from libs.trust.state import TrustedState
from services.device_agent import AGENT_VERSION
from services.device_agent.backoff import Backoff
from services.device_agent.capability import PYTHON_VERSION, check_runs_here
from services.device_agent.cloud import Cloud
from services.device_agent.domain.rollout import Changes, Entry, Stage, needed_folders, plan_changes
from services.device_agent.files import VersionFiles
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import values
from services.device_agent.store import versions as version_store
from services.device_agent.store.database import Database
from services.device_agent.tasks import Installed, Tasks

_log = logging.getLogger("isthmus.agent")

ROOT = "root"
"""Key of the pinned root in the store."""
DEVICE_SET = "device_set"
"""Key of the last accepted set's payload."""

_FETCH_ATTEMPTS = 5
_SUBJECT = "pull"
_LEFT_OUT = "MANIFEST_MISSING"

# Errors that say that the version itself can't be installed here, however often it is tried...
_TO_BLAME = (Invalid, NotFound, OutOfRange, Precondition)
# ...except for these reasons of theirs. Any other error may pass.
_MAY_PASS = frozenset({"EXPIRED", "ROOT_EXPIRED", "NOT_IN_SET", "NOT_ENROLLED", "UNIMPLEMENTED"})


class Puller:
    """See the module's text.

    Attributes:
        hint: rings when there may be something to pull.
        root_version: the pinned root's version, 0 before enrolment.
    """

    def __init__(
        self,
        database: Database,
        files: VersionFiles,
        tasks: Tasks,
        cloud: Cloud,
        reports: Bell,
        clock: Clock,
        randomness: Randomness,
        problems: Problems,
        *,
        interval_s: float,
        hint_jitter_s: float,
        backoff: Backoff,
        telemetry: Telemetry,
    ) -> None:
        self.hint = Bell()
        self.root_version = 0
        self._database = database
        self._files = files
        self._tasks = tasks
        self._cloud = cloud
        self._reports = reports
        self._clock = clock
        self._random = randomness
        self._problems = problems
        self._interval_s = interval_s
        self._hint_jitter_s = hint_jitter_s
        self._backoff = backoff
        self._telemetry = telemetry
        self._session: bytes | None = None
        self._missed = False

    def hinted(self, profile_digest: bytes) -> None:
        """Take a hint that the wanted set differs from a profile.

        One about the profile that a pull now going on is to change says nothing new, unless that pull turns
        out to change nothing.
        """
        if self._session == profile_digest:
            self._missed = True
        else:
            self.hint.ring()

    async def run(self) -> None:
        """Pull at once, then on hints, and every interval."""
        attempt = 0
        while True:
            seen = self.hint.rings
            try:
                # All calls of a pull make one trace, from here through the gateway to the deployer.
                with self._telemetry.span("pull"):
                    changed = await self.pull()
            except Error as error:
                self._problems.set(_SUBJECT, error.message, error.reason)
                # Not cut short by hints: they would come with every call for as long as the pull fails.
                await self._clock.sleep(self._backoff.delay_s(attempt, error))
                attempt += 1
                continue
            self._problems.clear(_SUBJECT)
            if self._missed and not changed:
                # The cloud wants something else and our pull couldn't tell what: ask again, ever more slowly.
                await self._clock.sleep(self._backoff.delay_s(attempt))
                attempt += 1
                continue
            attempt = 0
            wait_s = self._interval_s * self._random.uniform(0.9, 1.1)
            if await self.hint.wait_or_sleep(seen, self._clock, wait_s) != seen:
                # A release tells the devices that watch at one moment; they need not all come at that moment.
                await self._clock.sleep(self._random.uniform(0.0, self._hint_jitter_s))

    async def pull(self) -> bool:
        """Do one pull; return whether it changed what runs.

        A plan holds only as many roots and manifests as fit into a message. As long as those lead on, the
        rest is asked for at once.

        Raises:
            Error: what stopped it, or stopped a version of it in a way that may pass. What could be done is
                done.
        """
        began = self._tasks.profile_digest
        try:
            more = True
            while more:
                self._session, self._missed = self._tasks.profile_digest, False
                more = await self._pull()
            return self._tasks.profile_digest != began
        finally:
            self._session = None

    async def _pull(self) -> bool:
        """Follow one plan; return whether to ask for what it left out: roots, manifests."""
        state = await self._trusted_state()
        response = await self._cloud.plan(
            pull_pb2.PlanRequest(
                profile=self._tasks.profile,
                root_version=state.root.version,
                agent_version=AGENT_VERSION,
                python_version=PYTHON_VERSION,
            )
        )
        # The session's one reference time: as of the answer, by the gateway's clock.
        state = await self._trusted_state()
        pinned = state.root.version
        try:
            await self._accept(state, response)
        except Untrusted:
            if state.root.version == pinned:
                raise
            # Later roots may not have fitted into the answer, and the set may hold only by those.
            return True
        assert state.device_set is not None
        entries = [
            Entry(entry.task, entry.version, entry.manifest_digest, entry.release)
            for entry in state.device_set.entries.values()
        ]
        changes = plan_changes(self._tasks.versions, entries)
        self._explain(changes)
        manifests = {sha256_of(signed.payload): signed for signed in response.manifests}
        ready: list[Installed] = []
        passing: list[Error] = []
        for entry in changes.install:
            try:
                installed = await self._install(state, entry, manifests)
            except Error as error:
                self._problems.set(f"version {entry.key}", error.message, error.reason)
                passing.append(error)
                continue
            self._problems.clear(f"version {entry.key}")
            if installed is not None:
                ready.append(installed)
        if ready or changes.remove or changes.unstage:
            await self._tasks.activate(ready, changes.remove, changes.unstage)
            self._problems.clear_all("uploads of ", [f"uploads of {key}" for key in self._tasks.profile])
        await self._relabel(changes)
        self._reports.ring()
        await self._clear_away(passing)
        led_on = bool(ready) or state.root.version > pinned
        more = led_on and any(error.reason == _LEFT_OUT for error in passing)
        if passing and not more:
            raise passing[0]
        return more

    async def _trusted_state(self) -> TrustedState:
        root = await self._database.run(lambda connection: values.get_blob(connection, ROOT))
        payload = await self._database.run(lambda connection: values.get_blob(connection, DEVICE_SET))
        if root is None or self._cloud.credential is None:
            raise Precondition("this device isn't enrolled yet", reason="NOT_ENROLLED")
        signed = trust_pb2.Signed.FromString(root)
        state = TrustedState(signed, self._cloud.credential.name, self._cloud.clock.now(), payload)
        self.root_version = state.root.version
        return state

    async def _accept(self, state: TrustedState, response: pull_pb2.PlanResponse) -> None:
        """Take roots and set, each stored before it is acted on."""
        for signed in response.roots:
            self.root_version = state.update_root(signed).version
            await self._database.run(_keeper(state))
        before = state.device_set_payload
        state.accept_device_set(response.device_set)
        if state.device_set_payload != before:
            await self._database.run(_keeper(state))

    def _explain(self, changes: Changes) -> None:
        self._problems.clear_all("set ")
        self._problems.clear_all("version ", [f"version {entry.key}" for entry in changes.install])
        for entry in changes.refused:
            text = f"{entry.key} is here with another manifest; versions never change, so it is refused"
            self._problems.set(f"set {entry.key}", text, "MANIFEST_CHANGED")
        for entry in changes.failed:
            _log.info(
                "%s failed here before and isn't tried again", entry.key, extra={"release": entry.release}
            )

    # ---- one version ----

    async def _install(
        self, state: TrustedState, entry: Entry, manifests: Mapping[str, trust_pb2.Signed]
    ) -> Installed | None:
        """Stage a version and check that it loads; None when it is to blame and reported."""
        signed = manifests.get(entry.manifest_digest)
        if signed is None:
            raise Internal(f"{entry.key}: the plan lacks its manifest", reason=_LEFT_OUT)
        try:
            manifest = self._check_manifest(state, signed)
            here = self._tasks.installed.get(entry.key)
            if here is None:
                await self._fetch(entry, manifest)
                await self._stage(entry, manifest, signed)
            outcome = await self._tasks.load(manifest)
        except _TO_BLAME as error:
            if error.reason in _MAY_PASS:
                raise
            await self._fail(entry, error.reason, error.message)
            return None
        if not outcome.ok:
            reason = outcome.reason or "LOAD_ERROR"
            _log.error("%s doesn't load", entry.key, extra={"reason": reason, "detail": outcome.message})
            report = await self._tasks.reportable(manifest, reason, outcome.message)
            await self._tasks.discard(manifest)
            await self._fail(entry, reason, report)
            return None
        return Installed(entry, manifest)

    def _check_manifest(self, state: TrustedState, signed: trust_pb2.Signed) -> CheckedManifest:
        trusted = state.accept_manifest(signed)
        try:
            manifest = check_manifest(trusted.manifest)
        except Invalid as error:
            raise Invalid(f"manifest: {error.message}", reason="MANIFEST_INVALID") from error
        check_runs_here(manifest)
        return manifest

    async def _fetch(self, entry: Entry, manifest: CheckedManifest) -> None:
        await asyncio.to_thread(self._files.check_space, manifest.blobs)
        for blob in manifest.blobs:
            await self._fetch_blob(blob)
        await self._report(entry, Stage.DOWNLOADED)
        await self._report(entry, Stage.VERIFIED)

    async def _fetch_blob(self, blob: Blob) -> None:
        for attempt in range(_FETCH_ATTEMPTS):
            try:
                await self._files.fetch(self._cloud, blob)
                return
            except Error as error:
                if not error.retriable or error.reason == "DISK_FULL" or attempt == _FETCH_ATTEMPTS - 1:
                    raise
                await self._clock.sleep(self._backoff.delay_s(attempt, error))

    async def _stage(self, entry: Entry, manifest: CheckedManifest, signed: trust_pb2.Signed) -> None:
        await asyncio.to_thread(self._files.assemble, manifest, self._random.id())
        transported = signed.SerializeToString()
        moment = self._tasks.moment()
        await self._database.run(
            lambda connection: version_store.put_staged(connection, entry, transported, moment)
        )
        self._reports.ring()

    async def _report(self, entry: Entry, stage: Stage) -> None:
        moment = self._tasks.moment()
        await self._database.run(
            lambda connection: version_store.add_report(
                connection, entry.task, entry.version, entry.release, stage, moment
            )
        )
        self._reports.ring()

    async def _fail(self, entry: Entry, reason: str, message: str) -> None:
        moment = self._tasks.moment()
        await self._database.run(
            lambda connection: version_store.fail_staged(connection, entry, str(reason), message, moment)
        )
        await self._tasks.refresh()
        self._reports.ring()
        _log.error("%s can't be installed: %s", entry.key, message, extra={"reason": str(reason)})

    async def _relabel(self, changes: Changes) -> None:
        for entry in changes.relabel:
            moment = self._tasks.moment()
            await self._database.run(_relabeller(entry, moment))
        if changes.relabel:
            await self._tasks.refresh()

    async def _clear_away(self, passing: list[Error]) -> None:
        # What a version that is tried again has fetched so far stays.
        if not passing:
            await asyncio.to_thread(self._files.collect_blobs)
        await asyncio.to_thread(self._files.collect_folders, needed_folders(self._tasks.versions))


def _keeper(state: TrustedState) -> Callable[[sqlite3.Connection], None]:
    """Return what stores the root and the set together: a root may make an older set be forgotten."""
    root, payload = state.root_signed.SerializeToString(), state.device_set_payload

    def keep(connection: sqlite3.Connection) -> None:
        values.set_blob(connection, ROOT, root)
        if payload is None:
            values.discard(connection, DEVICE_SET)
        else:
            values.set_blob(connection, DEVICE_SET, payload)

    return keep


def _relabeller(entry: Entry, moment: version_store.Moment) -> Callable[[sqlite3.Connection], None]:
    return lambda connection: version_store.relabel(connection, entry, moment)
