"""Messages to domain values and back; the only code that sees both."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.tuner.v1 import tuner_pb2 as pb
from libs.common.errors import Invalid
from libs.common.names import ExperimentName, ModelName, TenantName
from libs.common.paging import decode_token, encode_token
from services.tuner.domain.experiments import Change, Seen
from services.tuner.domain.model import (
    Application,
    ApplicationState,
    Constraint,
    ExperimentState,
    Load,
    Metric,
    Objective,
    Parameter,
    PastRequest,
    SamplerKind,
    Spec,
    Trial,
    TrialState,
)

_SAMPLERS = {
    pb.ExperimentSpec.SAMPLER_UNSPECIFIED: SamplerKind.BAYESIAN,
    pb.ExperimentSpec.SAMPLER_GRID: SamplerKind.GRID,
    pb.ExperimentSpec.SAMPLER_RANDOM: SamplerKind.RANDOM,
    pb.ExperimentSpec.SAMPLER_BAYESIAN: SamplerKind.BAYESIAN,
}
_SAMPLERS_BACK = {
    SamplerKind.GRID: pb.ExperimentSpec.SAMPLER_GRID,
    SamplerKind.RANDOM: pb.ExperimentSpec.SAMPLER_RANDOM,
    SamplerKind.BAYESIAN: pb.ExperimentSpec.SAMPLER_BAYESIAN,
}
_STATES = {
    ExperimentState.RUNNING: pb.Experiment.STATE_RUNNING,
    ExperimentState.SUCCEEDED: pb.Experiment.STATE_SUCCEEDED,
    ExperimentState.FAILED: pb.Experiment.STATE_FAILED,
    ExperimentState.CANCELLED: pb.Experiment.STATE_CANCELLED,
}
_TRIAL_STATES = {
    TrialState.STARTING: pb.Trial.STATE_STARTING,
    TrialState.RUNNING: pb.Trial.STATE_RUNNING,
    TrialState.SUCCEEDED: pb.Trial.STATE_SUCCEEDED,
    TrialState.FAILED: pb.Trial.STATE_FAILED,
    TrialState.CANCELLED: pb.Trial.STATE_CANCELLED,
}
_APPLICATION_STATES = {
    ApplicationState.MEASURING_BEFORE: pb.Application.STATE_MEASURING_BEFORE,
    ApplicationState.MEASURING_AFTER: pb.Application.STATE_MEASURING_AFTER,
    ApplicationState.APPLIED: pb.Application.STATE_APPLIED,
    ApplicationState.ROLLED_BACK: pb.Application.STATE_ROLLED_BACK,
    ApplicationState.FAILED: pb.Application.STATE_FAILED,
}
DEFAULTS = Load()
_MAX_TRIALS, _MAX_FAILURES, _DEADLINE_S = 20, 5, 3600.0


def tenant_of(parent: str) -> str:
    """Return the tenant of "tenants/{t}"; raise Invalid for anything else."""
    return TenantName.parse(parent, "parent").tenant


def spec(message: pb.ExperimentSpec) -> Spec:
    """Return a specification, zeros replaced by defaults; its bounds are the domain's to check.

    Raises:
        Invalid: for a malformed name, sampler or duration.
    """
    if message.sampler not in _SAMPLERS:
        raise Invalid(
            f"spec.sampler: {message.sampler} is unknown; use SAMPLER_GRID, SAMPLER_RANDOM or "
            "SAMPLER_BAYESIAN",
            metadata={"field": "spec.sampler"},
        )
    return Spec(
        model=ModelName.parse(message.model, "spec.model"),
        parameters=tuple(Parameter(p.name, tuple(p.values)) for p in message.parameters),
        sampler=_SAMPLERS[message.sampler],
        seed=message.seed,
        max_trials=message.max_trial_count or _MAX_TRIALS,
        parallel_trials=message.parallel_trial_count or 1,
        max_failures=message.max_failure_count or _MAX_FAILURES,
        objective=Objective(message.objective.metric, message.objective.minimize),
        constraints=tuple(Constraint(c.metric, c.at_most) for c in message.constraints),
        load=_load(message.load),
        deadline_s=_seconds(message.deadline, "spec.deadline") or _DEADLINE_S,
    )


def _load(message: pb.Load) -> Load:
    return Load(
        concurrency=message.concurrency or DEFAULTS.concurrency,
        rate_rps=message.rate_rps,
        duration_s=_seconds(message.duration, "spec.load.duration") or DEFAULTS.duration_s,
        target_s=_seconds(message.target_latency, "spec.load.target_latency") or DEFAULTS.target_s,
        rows=message.rows_per_request or DEFAULTS.rows,
    )


def _seconds(message: Duration, field: str) -> float:
    if not (-315_576_000_000 <= message.seconds <= 315_576_000_000 and abs(message.nanos) < 1_000_000_000):
        raise Invalid(f"{field}: isn't a duration; write seconds, such as 5s", metadata={"field": field})
    return (message.seconds * 1_000_000_000 + message.nanos) / 1e9


def duration(seconds: float) -> Duration:
    """Return seconds as a message."""
    whole, nanos = divmod(round(seconds * 1e9), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def spec_message(value: Spec) -> pb.ExperimentSpec:
    """Return a specification as a message."""
    return pb.ExperimentSpec(
        model=str(value.model),
        parameters=[pb.Parameter(name=p.name, values=p.values) for p in value.parameters],
        sampler=_SAMPLERS_BACK[value.sampler],
        seed=value.seed,
        max_trial_count=value.max_trials,
        parallel_trial_count=value.parallel_trials,
        max_failure_count=value.max_failures,
        objective=pb.Objective(metric=value.objective.metric, minimize=value.objective.minimize),
        constraints=[pb.Constraint(metric=c.metric, at_most=c.at_most) for c in value.constraints],
        load=pb.Load(
            concurrency=value.load.concurrency,
            rate_rps=value.load.rate_rps,
            duration=duration(value.load.duration_s),
            target_latency=duration(value.load.target_s),
            rows_per_request=value.load.rows,
        ),
        deadline=duration(value.deadline_s),
    )


def request(message: pb.CreateExperimentRequest) -> PastRequest | None:
    """Return what a create asks, for its repetitions; None where they aren't told apart."""
    if not message.request_id:
        return None
    asked = pb.CreateExperimentRequest()
    asked.CopyFrom(message)
    asked.request_id = ""
    digest = hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()
    return PastRequest(message.request_id, digest)


def experiment(seen: Seen) -> pb.Experiment:
    """Return an experiment as a message."""
    value = seen.experiment
    return pb.Experiment(
        name=str(value.name),
        spec=spec_message(value.spec),
        state=_STATES[value.state],
        message=value.message,
        best_trial=value.best_trial,
        running_count=seen.counts.running,
        succeeded_count=seen.counts.succeeded,
        failed_count=seen.counts.failed,
        create_time=_time(value.create_time),
        end_time=_time(value.end_time),
        etag=str(value.revision),
        version=str(value.served.version),
        application=_application(value.application),
    )


def _application(value: Application | None) -> pb.Application | None:
    if value is None:
        return None
    return pb.Application(
        trial=value.trial,
        state=_APPLICATION_STATES[value.state],
        message=value.message,
        before=_metrics(value.before),
        after=_metrics(value.after),
        start_time=_time(value.start_time),
        end_time=_time(value.end_time),
    )


def trial(value: Trial) -> pb.Trial:
    """Return a trial as a message."""
    return pb.Trial(
        name=f"{value.experiment}/trials/{value.number}",
        number=value.number,
        point=dict(value.point),
        state=_TRIAL_STATES[value.state],
        message=value.message,
        metrics=_metrics(value.metrics),
        feasible=value.feasible,
        start_time=_time(value.start_time),
        end_time=_time(value.end_time),
    )


def change(value: Change) -> pb.WatchExperimentResponse:
    """Return a change as a message."""
    return pb.WatchExperimentResponse(
        experiment=experiment(value.seen), trials=[trial(changed) for changed in value.trials]
    )


def _metrics(values: Sequence[Metric]) -> list[pb.Metric]:
    return [pb.Metric(name=m.name, value=m.value, low=m.low, high=m.high) for m in values]


def _time(value: datetime | None) -> Timestamp | None:
    if value is None:
        return None
    message = Timestamp()
    message.FromDatetime(value.astimezone(UTC))
    return message


def experiment_page(token: str) -> str:
    """Return after which id a page begins."""
    after = decode_token(token).get("after", "")
    if not isinstance(after, str):
        raise _bad_token()
    return after


def trial_page(token: str) -> int:
    """Return after which number a page begins."""
    after = decode_token(token).get("after", 0)
    if not isinstance(after, int) or not 0 <= after < 2**31:
        raise _bad_token()
    return after


def _bad_token() -> Invalid:
    return Invalid(
        "page_token: not a token of this list; leave it empty for the first page",
        reason="BAD_PAGE_TOKEN",
        metadata={"field": "page_token"},
    )


def experiments_response(found: Sequence[Seen], size: int) -> pb.ListExperimentsResponse:
    """Return a page of `size`; `found` has one more where there are more."""
    more = len(found) > size
    token = encode_token({"after": found[size - 1].experiment.name.experiment}) if more else ""
    return pb.ListExperimentsResponse(
        experiments=[experiment(seen) for seen in found[:size]], next_page_token=token
    )


def trials_response(found: Sequence[Trial], size: int) -> pb.ListTrialsResponse:
    """Return a page of `size`; `found` has one more where there are more."""
    token = encode_token({"after": found[size - 1].number}) if len(found) > size else ""
    return pb.ListTrialsResponse(trials=[trial(value) for value in found[:size]], next_page_token=token)


def name_of(text: str, field: str = "name") -> ExperimentName:
    """Return an experiment's name; raise Invalid for anything else."""
    return ExperimentName.parse(text, field)
