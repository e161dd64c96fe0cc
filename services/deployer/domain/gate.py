"""The gate of a release's open step: pure, from counts and times to a decision with its reason."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from services.deployer.domain.model import Counts, Release, ReleaseState


@dataclass(frozen=True, slots=True)
class Advance:
    """Open the next step."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Change nothing; look again at `until` at the latest, or when a report comes in."""

    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop here until a person decides."""

    reason: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Take the version back from every device."""

    reason: str


@dataclass(frozen=True, slots=True)
class Succeed:
    """All steps are done."""

    reason: str


Decision = Advance | Hold | Pause | RollBack | Succeed


def decide(
    release: Release, counts: Counts, selected: int, fleet: int, now: datetime, *, elsewhere: int = 0
) -> Decision:
    """Return what to do with a release.

    Args:
        release: as it stands; only a running one leads to anything but Hold.
        counts: of its devices over all opened steps.
        selected: devices that its policy selects, whatever the step, but for those `elsewhere`.
        fleet: devices of the tenant that aren't revoked.
        now: wall-clock time.
        elsewhere: devices that its policy selects too, but that have their version from a newer release.

    Percents compare exactly at their bounds: `confirmed_percent` is met when reached, `failed_percent` is
    broken when exceeded.
    """
    if release.state is not ReleaseState.RUNNING:
        return Hold(release.state_reason, None)
    gate, step = release.gate, release.steps[-1]
    since = max(step.open_time, release.resume_time or step.open_time)
    deadline = since + gate.step_timeout
    share = percent(step.share / 100)
    where = f"step {len(release.steps)} of {len(release.shares)} ({share} of the selected devices)"
    judged = counts.confirmed + counts.failed

    complete = counts.targeted > 0 and judged >= counts.targeted
    if counts.failed and (judged >= gate.min_report_count or complete):
        failed = 100 * counts.failed / judged
        if failed > gate.failed_percent:
            return RollBack(
                f"{where}: {counts.failed} of {devices(judged)} that confirmed or failed "
                f"{'has' if counts.failed == 1 else 'have'} failed "
                f"({percent(failed)}), more than the {percent(gate.failed_percent)} that the gate allows"
                f"{most_often(counts, '; ')}"
            )
    if not selected:
        what = (
            "the tenant has no devices yet" if not fleet else f"its policy selects none of {devices(fleet)}"
        )
        if elsewhere:
            what = f"its policy selects {devices(elsewhere)}, all served by a newer release of the task"
        return _late(
            deadline, now, gate.step_timeout, f"{where}: {what}; the step stays open until one is selected"
        )
    soaked = step.open_time + gate.soak_time
    if counts.targeted == 0:
        fine = f"{where}: none of the {devices(selected)} selected falls into this share"
    else:
        confirmed = 100 * counts.confirmed / counts.targeted
        figures = (
            f"{counts.confirmed} of {devices(counts.targeted)} confirmed ({percent(confirmed)}, "
            f"the gate wants {percent(gate.confirmed_percent)}), {counts.failed} failed"
            f"{most_often(counts, ', ')}"
        )
        if confirmed < gate.confirmed_percent:
            if complete:
                figures += "; all have reported, so that only late joiners could still meet the gate"
            return _late(deadline, now, gate.step_timeout, f"{where}: {figures}")
        fine = f"{where}: {figures}"
    if now < soaked:
        left = (soaked - now).total_seconds()
        return Hold(
            f"{fine}; soaking for another {left:.0f} s of {gate.soak_time.total_seconds():.0f} s", soaked
        )
    if len(release.steps) < len(release.shares):
        return Advance(fine)
    return Succeed(fine)


def _late(deadline: datetime, now: datetime, timeout: timedelta, reason: str) -> Hold | Pause:
    if now >= deadline:
        return Pause(f"{reason}; it hasn't met its gate within {timeout.total_seconds():.0f} s")
    return Hold(reason, deadline)


def percent(value: float) -> str:
    """Return a percentage for people, with up to two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + " %"


def most_often(counts: Counts, before: str) -> str:
    """Return `before` and the commonest reason of failures with its count; nothing when none failed."""
    if not counts.failures:
        return ""
    commonest = counts.failures[0]
    return f"{before}most often {commonest.reason} ({devices(commonest.devices)})"


def devices(count: int) -> str:
    """Return "1 device" or "n devices"."""
    return f"{count} device{'' if count == 1 else 's'}"
