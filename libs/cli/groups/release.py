"""`isthmus release`: staged, gated, reversible releases."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC

import click

from isthmus.deployer.v1 import release_pb2, release_pb2_grpc
from libs.cli.absent import absent_devices
from libs.cli.following import resuming
from libs.cli.main import Group
from libs.cli.output import human_time
from libs.cli.session import Session, with_session
from libs.cli.values import DURATION, PERCENTAGES, Number, policy_json, version_name
from libs.common.errors import Precondition, Unavailable

_ENDED = (
    release_pb2.Release.STATE_SUCCEEDED,
    release_pb2.Release.STATE_ROLLED_BACK,
    release_pb2.Release.STATE_SUPERSEDED,
)
# A watch in which no news came for so long is started anew; what is waited for is said in between.
_QUIET_S = 15.0


@click.group(cls=Group)
def release() -> None:
    """Staged, gated, reversible releases of task versions."""


def _stub(session: Session) -> release_pb2_grpc.ReleaseServiceStub:
    return release_pb2_grpc.ReleaseServiceStub(session.channel)


def _name(session: Session, release_id: str) -> str:
    return session.name("releases", release_id)


def _state(found: release_pb2.Release) -> str:
    return release_pb2.Release.State.Name(found.state).removeprefix("STATE_")


def _version(found: release_pb2.Release) -> str:
    words = found.version.split("/")
    return f"{words[3]}@{words[5]}" if len(words) == 6 else found.version


def _step(found: release_pb2.Release) -> str:
    steps = found.steps_percent
    if not steps:
        return "-"
    return f"{found.step_index + 1}/{len(steps)} ({steps[min(found.step_index, len(steps) - 1)]:g} %)"


def _counts(counts: release_pb2.Counts) -> str:
    return f"{counts.confirmed_count}/{counts.targeted_count} confirmed, {counts.failed_count} failed"


def _failures(found: release_pb2.Release) -> str:
    """Return why devices failed, the most frequent reason first; empty when none did."""
    return ", ".join(
        f"{failure.reason} ({failure.device_count} device{'' if failure.device_count == 1 else 's'})"
        for failure in found.failures
    )


def _show(session: Session, found: release_pb2.Release, absent: str = "") -> None:
    counts = found.counts
    session.output.message(
        found,
        [
            ("release", found.name),
            ("version", _version(found)),
            ("state", _state(found)),
            ("why", found.state_reason or "-"),
            ("policy", found.policy_json or "all devices"),
            ("step", _step(found)),
            *(
                (
                    f"  {step.percent:g} %",
                    f"opened {human_time(step.open_time.ToDatetime(tzinfo=UTC))}, "
                    + (
                        f"closed {human_time(step.close_time.ToDatetime(tzinfo=UTC))}"
                        if step.HasField("close_time")
                        else "not closed"
                    )
                    + f"; {_counts(step.counts)}",
                )
                for step in found.steps
            ),
            (
                "devices",
                f"{counts.targeted_count} targeted: {counts.downloaded_count} downloaded, "
                f"{counts.verified_count} verified, {counts.staged_count} staged, "
                f"{counts.activated_count} activated, {counts.confirmed_count} confirmed, "
                f"{counts.failed_count} failed",
            ),
            *([("failed later", f"{found.late_failed_count}")] if found.late_failed_count else []),
            *([("failed for", _failures(found))] if found.failures else []),
            *([("waits for", absent)] if absent else []),
            ("made", f"{human_time(found.create_time.ToDatetime(tzinfo=UTC))} by {found.creator}"),
            ("etag", found.etag),
        ],
    )


@release.command()
@click.argument("version", metavar="TASK@VERSION")
@click.option("--steps", type=PERCENTAGES, default=(100.0,), help="Ascending shares, such as 10%,50%,100%.")
@click.option("--id", "release_id", default="", help="Name of the release; default: chosen.")
@click.option("--where", help="Policy: an expression over device attributes, as JSON.")
@click.option(
    "--attribute", "attributes", multiple=True, help="Policy: KEY=VALUE that a device must have; repeat."
)
@click.option("--confirmed", type=Number(), help="Percent of a step's devices that must confirm; default 95.")
@click.option(
    "--failed", type=Number(), help="Percent of failed devices above which it rolls back; default 5."
)
@click.option(
    "--min-reports",
    type=click.IntRange(1, 2**31 - 1),
    help="Devices that must report before --failed is judged.",
)
@click.option("--soak", type=DURATION, help="Least time that a step stays open; default 0.")
@click.option(
    "--step-timeout", type=DURATION, help="A step that takes longer pauses the release; default 24h."
)
@click.option("--dry-run", is_flag=True, help="Only check, and say how many devices it would reach.")
@click.option(
    "--watch", "follow", is_flag=True, help="Stay and show its progress; exit 1 unless it succeeds."
)
@with_session
def create(
    session: Session,
    version: str,
    steps: tuple[float, ...],
    release_id: str,
    where: str | None,
    attributes: tuple[str, ...],
    confirmed: float | None,
    failed: float | None,
    min_reports: int | None,
    soak: float | None,
    step_timeout: float | None,
    dry_run: bool,
    follow: bool,
) -> None:
    """Release a published version to the devices that the policy selects, in steps."""
    if where and attributes:
        raise click.UsageError("give --where or --attribute, not both")
    gate = release_pb2.Gate(
        confirmed_percent=confirmed, failed_percent=failed, min_report_count=min_reports or 0
    )
    if soak is not None:
        gate.soak_time.FromMicroseconds(round(soak * 1e6))
    if step_timeout is not None:
        gate.step_timeout.FromMicroseconds(round(step_timeout * 1e6))
    request = release_pb2.CreateReleaseRequest(
        parent=str(session.tenant),
        release_id=release_id,
        version=str(version_name(session.tenant, version)),
        policy_json=policy_json(where, attributes),
        steps_percent=steps,
        gate=gate,
        request_id=str(uuid.uuid4()),
        validate_only=dry_run,
    )
    made = session.call(_stub(session).CreateRelease, request).release
    if dry_run:
        session.output.message(
            made,
            # The rows of a release, as far as there is one.
            [
                ("release", "none made: --dry-run only checks"),
                ("version", _version(made)),
                ("why", made.state_reason or "-"),
                ("policy", made.policy_json or "all devices"),
                ("steps", ", ".join(f"{percent:g} %" for percent in made.steps_percent)),
                ("devices", f"{made.counts.targeted_count} selected by the policy"),
            ],
            more={"outcome": "checked"},
        )
    elif follow:
        _follow(session, made.name, made=True)
    else:
        _show(session, made)


@release.command()
@click.argument("release_id")
@with_session
def get(session: Session, release_id: str) -> None:
    """Show a release: its steps, counts, and why it is where it is."""
    request = release_pb2.GetReleaseRequest(name=_name(session, release_id))
    found = session.call(_stub(session).GetRelease, request).release
    _show(session, found, "" if session.output.as_json else absent_devices(session, found))


@release.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List releases, newest first."""
    request = release_pb2.ListReleasesRequest(parent=str(session.tenant))
    found = [
        each for page in session.pages(_stub(session).ListReleases, request, limit) for each in page.releases
    ]
    session.output.messages(
        found,
        ("RELEASE", "VERSION", "STATE", "STEP", "DEVICES", "FAILED FOR", "MADE"),
        (
            (
                each.name.rpartition("/")[2],
                _version(each),
                _state(each),
                _step(each),
                _counts(each.counts),
                each.failures[0].reason if each.failures else "-",
                human_time(each.create_time.ToDatetime(tzinfo=UTC)),
            )
            for each in found
        ),
    )


@release.command()
@click.argument("release_id")
@with_session
def watch(session: Session, release_id: str) -> None:
    """Show a release's progress until it has ended; exit 1 unless it succeeds."""
    _follow(session, _name(session, release_id))


def _follow(session: Session, name: str, *, made: bool = False) -> None:
    last, said, waited = release_pb2.Release(), "", ""
    request = release_pb2.WatchReleaseRequest(name=name)

    def watch_a_while() -> Iterator[release_pb2.WatchReleaseResponse]:
        """Watch until nothing came for a while, and then say what is waited for."""
        nonlocal waited
        started = time.monotonic()
        try:
            yield from session.stream(_stub(session).WatchRelease, request, timeout_s=_QUIET_S)
        except Unavailable as error:
            # Where the gateway's end of the call comes first, it is CANCELLED. A gateway that has just gone
            # away is taken for quiet too, and found out by the next call.
            quiet = time.monotonic() - started > _QUIET_S - 1 or error.reason == "DEADLINE_EXCEEDED"
            if not quiet or not said:
                raise
            line = absent_devices(session, last)
            if line and line != waited:
                session.output.note(f"waiting for {line}")
            waited = line

    stream = resuming(session, watch_a_while, came=made, endless=True)
    for answer in stream:
        last = answer.release
        counts = last.counts
        line = (
            f"{_version(last)}  {_state(last)}  step {_step(last)}  {counts.activated_count} running, "
            f"{_counts(counts)}" + (f"  — {last.state_reason}" if last.state_reason else "")
        )
        if line != said:
            session.output.note(line)
            said = line
        if last.state in _ENDED:
            break
    _show(session, last)
    if last.state != release_pb2.Release.STATE_SUCCEEDED:
        raise Precondition(f"{name}: {_state(last)}: {last.state_reason}", reason="RELEASE_NOT_SUCCEEDED")


@release.command()
@click.argument("release_id")
@click.option("--reason", default="", help="Why, for the audit.")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def pause(session: Session, release_id: str, reason: str, etag: str) -> None:
    """Hold a release; devices keep what they have."""
    request = release_pb2.PauseReleaseRequest(name=_name(session, release_id), reason=reason, etag=etag)
    _show(session, session.call(_stub(session).PauseRelease, request).release)


@release.command()
@click.argument("release_id")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def resume(session: Session, release_id: str, etag: str) -> None:
    """Let a paused release go on."""
    request = release_pb2.ResumeReleaseRequest(name=_name(session, release_id), etag=etag)
    _show(session, session.call(_stub(session).ResumeRelease, request).release)


@release.command()
@click.argument("release_id")
@click.option("--reason", default="", help="Why, for the audit.")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def rollback(session: Session, release_id: str, reason: str, etag: str) -> None:
    """Take the version back from every device."""
    request = release_pb2.RollBackReleaseRequest(name=_name(session, release_id), reason=reason, etag=etag)
    _show(session, session.call(_stub(session).RollBackRelease, request).release)
