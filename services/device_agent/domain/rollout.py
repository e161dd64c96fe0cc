"""Versions on this device: which to install, keep, go back to and remove, and when one is well.

    (planned) ──files verified──► STAGED ──load check──► ACTIVE ──health──► CONFIRMED
                                    │                      │                  │  ▲
                                    └──────► FAILED ◄──────┴── rollback ──────┤  │ rollback of the next
                                                                              ▼  │
                                                                            PREVIOUS

At most one version of a task runs (ACTIVE or CONFIRMED), and at most one is kept to go back to (PREVIOUS: one
that was CONFIRMED when its successor took over).

A FAILED version isn't tried again on this device unless the signed set brings it under another release: the
same release naming it again only means that the cloud hasn't seen the report yet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from libs.task.manifest import CheckedHealth


class State(StrEnum):
    """Where a version stands on this device."""

    STAGED = "STAGED"
    """Files in place, not running."""
    ACTIVE = "ACTIVE"
    """Running, not confirmed."""
    CONFIRMED = "CONFIRMED"
    """Running well."""
    PREVIOUS = "PREVIOUS"
    """Was confirmed; kept so that its successor can be rolled back."""
    FAILED = "FAILED"
    """Given up; kept as a note without files."""

    @property
    def runs(self) -> bool:
        """Whether a version in this state is the one of its task that runs."""
        return self in (State.ACTIVE, State.CONFIRMED)

    @property
    def has_files(self) -> bool:
        """Whether a version in this state needs its folder."""
        return self is not State.FAILED


class Stage(StrEnum):
    """What is reported to the cloud."""

    DOWNLOADED = "DOWNLOADED"
    VERIFIED = "VERIFIED"
    STAGED = "STAGED"
    ACTIVATED = "ACTIVATED"
    CONFIRMED = "CONFIRMED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the signed set: what the cloud wants to run here."""

    task: str
    version: str
    manifest_digest: str
    release: str

    @property
    def key(self) -> str:
        """`task@version`."""
        return f"{self.task}@{self.version}"


@dataclass(frozen=True, slots=True)
class Version:
    """A version as the store has it."""

    task: str
    version: str
    state: State
    release: str
    manifest_digest: str
    activated_seq: int = 0
    """Last event processed when it was activated; its trigger sees the events after it."""
    idle_s: float = 0.0
    """How long it has run so far, restarts taken out."""
    success_count: int = 0
    failure_count: int = 0
    failures_in_a_row: int = 0
    successes_since: int = 0
    """Successful runs since its last activation."""
    failure_reason: str = ""
    failure_message: str = ""

    @property
    def key(self) -> str:
        """`task@version`."""
        return f"{self.task}@{self.version}"


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes the device match a set."""

    install: tuple[Entry, ...] = ()
    """To be staged, or staged already, and then activated."""
    relabel: tuple[Entry, ...] = ()
    """Running already, under another release."""
    remove: tuple[str, ...] = ()
    """Tasks that the set lacks."""
    unstage: tuple[Version, ...] = ()
    """Staged for an earlier set, never run, and not in this one."""
    refused: tuple[Entry, ...] = ()
    """Known by that name with another manifest: versions never change."""
    failed: tuple[Entry, ...] = ()
    """Gave up on these under this very release."""


def plan_changes(versions: Iterable[Version], entries: Iterable[Entry]) -> Changes:
    """Compare what is here with what the set wants."""
    here = {(version.task, version.version): version for version in versions}
    wanted = list(entries)
    install: list[Entry] = []
    relabel: list[Entry] = []
    refused: list[Entry] = []
    failed: list[Entry] = []
    for entry in wanted:
        known = here.get((entry.task, entry.version))
        if known is None:
            install.append(entry)
        elif known.state is State.FAILED and known.release == entry.release:
            failed.append(entry)
        elif known.manifest_digest != entry.manifest_digest:
            # A failed one has no files that could be mixed up, so a new release may correct it.
            (install if known.state is State.FAILED else refused).append(entry)
        elif not known.state.runs:
            install.append(entry)
        elif known.release != entry.release:
            relabel.append(entry)
    tasks = {entry.task for entry in wanted}
    # Notes of failed versions stay: they keep the same release from trying the version again.
    installed = {task for (task, _), version in here.items() if version.state.has_files}
    remove = sorted(installed - tasks)
    named = {(entry.task, entry.version) for entry in wanted}
    unstage = [v for key, v in here.items() if v.state is State.STAGED and key not in named]
    return Changes(
        install=tuple(install),
        relabel=tuple(relabel),
        remove=tuple(remove),
        unstage=tuple(unstage),
        refused=tuple(refused),
        failed=tuple(failed),
    )


@dataclass(frozen=True, slots=True)
class Succession:
    """What an activation does to the other versions of its task."""

    running: str | None
    """The version that ran until now."""
    keep_running_as_previous: bool
    drop: tuple[str, ...]
    """Versions whose rows and files go."""


def succeed(versions: Iterable[Version], entry: Entry) -> Succession:
    """Decide what becomes of the other versions of `entry`'s task when it is activated.

    The one that ran is kept to go back to if it was confirmed, except when the step itself goes back to the
    kept version: the cloud has then withdrawn what ran. Notes of failed versions stay.
    """
    others = [v for v in versions if v.task == entry.task and v.version != entry.version]
    back = any(
        v.state is State.PREVIOUS for v in versions if (v.task, v.version) == (entry.task, entry.version)
    )
    running = next((v for v in others if v.state.runs), None)
    keep = running is not None and running.state is State.CONFIRMED and not back
    kept: list[str] = []
    if running is not None and running.state is State.ACTIVE and not back:
        # An unconfirmed one never becomes what we go back to; the one before it stays.
        kept = [v.version for v in others if v.state is State.PREVIOUS]
    drop = tuple(
        v.version
        for v in others
        if v.state is not State.FAILED and v.version not in kept and not (v is running and keep)
    )
    return Succession(None if running is None else running.version, keep, drop)


class Verdict(StrEnum):
    """What a run or the passing of time means for a version."""

    NOTHING = "NOTHING"
    CONFIRM = "CONFIRM"
    ROLL_BACK = "ROLL_BACK"


def after_run(version: Version, policy: CheckedHealth, *, ok: bool) -> tuple[Version, Verdict]:
    """Count a run and judge the version. Only the version that runs is judged; an older one just counts."""
    counted = replace(
        version,
        success_count=version.success_count + ok,
        failure_count=version.failure_count + (not ok),
        failures_in_a_row=0 if ok else version.failures_in_a_row + 1,
        successes_since=version.successes_since + ok,
    )
    if not counted.state.runs:
        return counted, Verdict.NOTHING
    return counted, judge(counted, policy)


def judge(version: Version, policy: CheckedHealth) -> Verdict:
    """Judge a running version by its counts and how long it has run."""
    if version.failures_in_a_row >= policy.max_failure_count:
        return Verdict.ROLL_BACK
    if version.state is State.ACTIVE:
        if version.successes_since >= policy.confirm_run_count:
            return Verdict.CONFIRM
        # Idle confirmation is for versions that nothing has triggered or that only succeeded so far.
        if version.failures_in_a_row == 0 and version.idle_s >= policy.confirm_idle_s:
            return Verdict.CONFIRM
    return Verdict.NOTHING


def idle_left(version: Version, policy: CheckedHealth) -> float:
    """Return the seconds until the version may be confirmed for having run without a failure."""
    return max(0.0, policy.confirm_idle_s - version.idle_s)


def needed_folders(versions: Iterable[Version]) -> Mapping[str, frozenset[str]]:
    """Return task → versions whose folders must stay."""
    folders: dict[str, set[str]] = {}
    for version in versions:
        if version.state.has_files:
            folders.setdefault(version.task, set()).add(version.version)
    return {task: frozenset(names) for task, names in folders.items()}
