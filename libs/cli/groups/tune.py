"""`isthmus tune`: experiments that find a serving configuration."""

from __future__ import annotations

import uuid
from pathlib import Path

import click

from isthmus.tuner.v1 import tuner_pb2
from libs.cli import tuning
from libs.cli.endpoints import model_name
from libs.cli.files import read_text
from libs.cli.jobs import after, last_part, moment
from libs.cli.main import Group
from libs.cli.output import counted
from libs.cli.session import Session, with_session
from libs.cli.tuning import experiment_name, get_experiment, list_trials, stub
from libs.cli.values import LIMITS, VARY, Duration, Number
from libs.cli.yamltext import Filler, Text
from libs.common.errors import Invalid

_SAMPLERS = tuple(
    name.removeprefix("SAMPLER_").lower() for name in tuner_pb2.ExperimentSpec.Sampler.keys()[1:]
)
_SPEC = tuner_pb2.ExperimentSpec
_DURATION = Duration(least="1s", most="10m")
_TARGET = Duration(most="60s")
_DEADLINE = Duration(least="1s", most="7d")


@click.group(cls=Group)
def tune() -> None:
    """Experiments that find how an endpoint is best served."""


@tune.command()
@click.argument("endpoint_id", metavar="[ENDPOINT]", default="")
@click.option(
    "-f", "--file", "file", type=click.Path(dir_okay=False), help="The experiment, as YAML or JSON."
)
@click.option("--id", "experiment_id", default="", help="Name of the experiment; default: chosen.")
@click.option(
    "--vary",
    "parameters",
    multiple=True,
    type=VARY,
    metavar="NAME=V,V...",
    help="What may vary and its values, such as max_batch_rows=1,4,16; repeat.",
)
@click.option("--objective", help="The metric that counts; default goodput_rps.")
@click.option(
    "--at-most",
    "limits",
    multiple=True,
    type=LIMITS,
    metavar="METRIC=VALUE",
    help="What every acceptable trial must hold, such as p99_ms=60; repeat.",
)
@click.option("--sampler", type=click.Choice(_SAMPLERS), help="How points are chosen; default bayesian.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of what is left to chance; default 0.")
@click.option("--trials", type=click.IntRange(1, 1000), help="Trials at most; default 20.")
@click.option("--parallel", type=click.IntRange(1, 16), help="Trials at once; default 1.")
@click.option("--concurrency", type=click.IntRange(1, 256), help="Callers that wait for answers; default 8.")
@click.option("--rate", type=Number(0, 100_000, min_open=True), help="Instead: arrivals a second.")
@click.option("--duration", type=_DURATION, help="Measured time of a trial; default 5s.")
@click.option("--target-latency", type=_TARGET, help="Answers within it are goodput; default 100ms.")
@click.option("--rows", type=click.IntRange(1, 4096), help="Rows of a request; default 1.")
@click.option("--deadline", type=_DEADLINE, help="Longest time in all; default 1h.")
@click.option("--dry-run", is_flag=True, help="Only check it.")
@click.option("--watch", "watched", is_flag=True, help="Stay and show each trial; exit 1 unless it succeeds.")
@click.option(
    "--apply",
    "applied",
    is_flag=True,
    help="Stay, and apply the best trial; exit 1 when it does worse and is rolled back.",
)
@with_session
def run(
    session: Session,
    endpoint_id: str,
    file: str | None,
    experiment_id: str,
    dry_run: bool,
    watched: bool,
    applied: bool,
    **options: object,
) -> None:
    """Find how ENDPOINT is best served, by trials on instances of its own; users' requests aren't touched.

    Say what to try by flags, or all of it with --file.
    """
    if dry_run and (watched or applied):
        raise click.UsageError("--dry-run starts nothing that could be watched or applied")
    spec = _spec(session, endpoint_id, file, options)
    parent = str(session.tenant)
    if "/" in experiment_id:
        parent, _, experiment_id = experiment_name(session, experiment_id).partition("/experiments/")
    request = tuner_pb2.CreateExperimentRequest(
        parent=parent,
        experiment_id=experiment_id,
        spec=spec,
        request_id=str(uuid.uuid4()),
        validate_only=dry_run,
    )
    made = session.call(stub(session).CreateExperiment, request).experiment
    if dry_run:
        made.name = ""
    if watched or applied:
        session.output.note(f"{made.name}: {counted(tuning.trial_total(made.spec), 'trial')} at most")
        _follow(session, made.name, applied=applied)
    else:
        tuning.show_experiment(session, made)


def _spec(
    session: Session, endpoint_id: str, file: str | None, options: dict[str, object]
) -> tuner_pb2.ExperimentSpec:
    if file is None:
        if not endpoint_id:
            raise click.UsageError("name an ENDPOINT and what may --vary, or give a --file")
        return _spec_of_flags(model_name(session, endpoint_id), **options)  # type: ignore[arg-type]
    given = [
        parameter.opts[0]
        for parameter in click.get_current_context().command.params
        if options.get(parameter.name or "") not in (None, ())
    ]
    if endpoint_id or given:
        raise click.UsageError(
            f"--file says all of the experiment; leave out {'ENDPOINT' if endpoint_id else given[0]}"
        )
    return _spec_of_file(session, file)


def _spec_of_file(session: Session, file: str) -> tuner_pb2.ExperimentSpec:
    text = Text(file, read_text(Path(file), "file"))
    documents = text.documents()
    if len(documents) != 1:
        raise Invalid(f"{file}: holds {len(documents)} documents; write one experiment", reason="BAD_YAML")
    spec = _SPEC()
    Filler(text).fill(spec, documents[0], "experiment")
    if not spec.model:
        raise Invalid(f"{file}: experiment.model: is missing; name the endpoint", reason="BAD_YAML")
    spec.model = model_name(session, spec.model)
    return spec


def _spec_of_flags(
    model: str,
    parameters: tuple[tuple[str, tuple[float, ...]], ...],
    objective: str | None,
    limits: tuple[tuple[str, float], ...],
    sampler: str | None,
    seed: int | None,
    trials: int | None,
    parallel: int | None,
    concurrency: int | None,
    rate: float | None,
    duration: float | None,
    target_latency: float | None,
    rows: int | None,
    deadline: float | None,
) -> tuner_pb2.ExperimentSpec:
    if not parameters:
        raise click.UsageError("--vary what? such as --vary max_batch_rows=1,4,16")
    if concurrency and rate:
        raise click.UsageError("--concurrency and --rate are two kinds of load; give one")
    spec = _SPEC(
        model=model,
        seed=seed or 0,
        max_trial_count=trials or 0,
        parallel_trial_count=parallel or 0,
        sampler=_SPEC.Sampler.Value(f"SAMPLER_{sampler.upper()}") if sampler else _SPEC.SAMPLER_UNSPECIFIED,
    )
    for name, values in parameters:
        spec.parameters.add(name=name, values=values)
    spec.objective.metric = objective or "goodput_rps"
    # Of rates one wants much, of all else little.
    spec.objective.minimize = not spec.objective.metric.endswith("_rps")
    for metric, at_most in limits:
        spec.constraints.add(metric=metric, at_most=at_most)
    load = spec.load
    load.concurrency, load.rate_rps, load.rows_per_request = concurrency or 0, rate or 0.0, rows or 0
    for message, seconds in (
        (load.duration, duration),
        (load.target_latency, target_latency),
        (spec.deadline, deadline),
    ):
        if seconds is not None:
            message.FromMicroseconds(round(seconds * 1e6))
    return spec


def _follow(session: Session, name: str, *, applied: bool) -> None:
    experiment, trials = tuning.follow(session, name)
    best = trials.get(experiment.best_trial)
    if not applied or not best or experiment.state != tuner_pb2.Experiment.STATE_SUCCEEDED:
        tuning.show_experiment(session, experiment, best)
        tuning.require_success(experiment)
        return
    if not session.output.as_json:
        tuning.show_experiment(session, experiment, best)
    tuning.show_application(session, tuning.apply(session, name, 0))


@tune.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List the tenant's experiments by name."""
    request = tuner_pb2.ListExperimentsRequest(parent=str(session.tenant))
    pages = session.pages(stub(session).ListExperiments, request, limit)
    found = [each for page in pages for each in page.experiments]
    session.output.messages(
        found,
        ("EXPERIMENT", "STATE", "ENDPOINT", "WANTED", "TRIALS", "BEST", "APPLIED", "MADE"),
        (
            (
                last_part(each.name),
                tuning.state_of(each),
                last_part(each.spec.model),
                tuning.objective_text(each.spec),
                tuning.counts_text(each),
                f"trial {each.best_trial}" if each.best_trial else "-",
                tuning.application_state(each.application) if each.HasField("application") else "-",
                moment(each.create_time),
            )
            for each in found
        ),
    )


@tune.command()
@click.argument("experiment_id", metavar="EXPERIMENT")
@with_session
def get(session: Session, experiment_id: str) -> None:
    """Show an experiment: what is varied, how far it is, its best trial."""
    name = experiment_name(session, experiment_id)
    found = get_experiment(session, name)
    best = None
    if found.best_trial and not session.output.as_json:
        best = next((each for each in list_trials(session, name) if each.number == found.best_trial), None)
    tuning.show_experiment(session, found, best)


@tune.command()
@click.argument("experiment_id", metavar="EXPERIMENT")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def trials(session: Session, experiment_id: str, limit: int | None) -> None:
    """List an experiment's trials with their figures and 95 % intervals; the best one is marked."""
    name = experiment_name(session, experiment_id)
    tuning.show_trials(session, get_experiment(session, name), list_trials(session, name, limit))


@tune.command()
@click.argument("experiment_id", metavar="EXPERIMENT")
@with_session
def watch(session: Session, experiment_id: str) -> None:
    """Show each trial as it ends, until the experiment has ended; exit 1 unless it succeeds."""
    _follow(session, experiment_name(session, experiment_id), applied=False)


@tune.command()
@click.argument("experiment_ids", metavar="EXPERIMENT...", nargs=-1, required=True)
@with_session
def cancel(session: Session, experiment_ids: tuple[str, ...]) -> None:
    """End experiments early; what was measured stays."""
    done: list[tuner_pb2.Experiment] = []
    for name in [experiment_name(session, each) for each in experiment_ids]:
        with after([each.name for each in done]):
            request = tuner_pb2.CancelExperimentRequest(name=name)
            done.append(session.call(stub(session).CancelExperiment, request).experiment)
    if len(done) == 1:
        tuning.show_experiment(session, done[0])
        return
    rows = ((last_part(each.name), tuning.state_of(each), tuning.counts_text(each)) for each in done)
    session.output.messages(done, ("EXPERIMENT", "STATE", "TRIALS"), rows)


@tune.command("apply")
@click.argument("experiment_id", metavar="EXPERIMENT")
@click.option("--trial", type=click.IntRange(1, 1000), help="Which trial; default: the best one.")
@with_session
def apply_(session: Session, experiment_id: str, trial: int | None) -> None:
    """Apply a trial's configuration to the endpoint, measured before and after; no request is dropped.

    It is rolled back, and the command exits with 1, when the endpoint does worse beyond both intervals.
    """
    name = experiment_name(session, experiment_id)
    tuning.show_application(session, tuning.apply(session, name, trial or 0))


@tune.command()
@click.argument("experiment_ids", metavar="EXPERIMENT...", nargs=-1, required=True)
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read; for one.")
@with_session
def delete(session: Session, experiment_ids: tuple[str, ...], etag: str) -> None:
    """Remove experiments that have ended, with their trials."""
    if etag and len(experiment_ids) > 1:
        raise click.UsageError("--etag is that of one experiment")
    done: list[str] = []
    for name in [experiment_name(session, each) for each in experiment_ids]:
        with after(done):
            request = tuner_pb2.DeleteExperimentRequest(name=name, etag=etag)
            session.call(stub(session).DeleteExperiment, request)
        done.append(name)
        session.output.say(f"{name}: deleted")
    if session.output.as_json:
        session.output.values({"deleted": done[0] if len(done) == 1 else done}, "")
