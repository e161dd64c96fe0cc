"""`isthmus tune`: what is sent to the tuner, and what people see of its answers."""

from pathlib import Path

import pytest

from isthmus.tuner.v1 import tuner_pb2
from libs.cli import following
from libs.cli.output import Output
from libs.cli.testing import FakeCloud
from libs.cli.tuning import bar, best_of, figure, number, trial_total
from tests.unit.libs.cli.groups.conftest import Isthmus

Create = tuner_pb2.CreateExperimentRequest
Experiment = tuner_pb2.Experiment
Spec = tuner_pb2.ExperimentSpec
Trial = tuner_pb2.Trial
Application = tuner_pb2.Application
FLAGS = ("--vary", "max_batch_rows=16,1", "--vary", "max_batch_delay_ms=0,2.5")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_PAUSE_S", 0.01)


def metric(name: str, value: float, spread: float = 0.0) -> tuner_pb2.Metric:
    return tuner_pb2.Metric(name=name, value=value, low=value - spread, high=value + spread)


def trial(number: int, goodput: float = 0.0, **changes: object) -> Trial:
    found = Trial(
        name=f"tenants/acme/experiments/e1/trials/{number}",
        number=number,
        point={"max_batch_rows": 4 ** (number - 1)},
        state=Trial.STATE_SUCCEEDED if goodput else Trial.STATE_RUNNING,
        feasible=bool(goodput),
    )
    if goodput:
        found.metrics.extend([metric("goodput_rps", goodput, 10), metric("p99_ms", 12.34, 1)])
    found.MergeFrom(Trial(**changes))  # type: ignore[arg-type]
    return found


def experiment(state: Experiment.State.ValueType = Experiment.STATE_RUNNING, best: int = 0) -> Experiment:
    found = Experiment(
        name="tenants/acme/experiments/e1",
        state=state,
        best_trial=best,
        version="tenants/acme/models/ranker/versions/v1",
        spec=Spec(model="tenants/acme/models/ranker", max_trial_count=3),
    )
    found.spec.parameters.add(name="max_batch_rows", values=[1, 4, 16])
    found.spec.objective.metric = "goodput_rps"
    found.spec.load.concurrency = 8
    return found


def seen(found: Experiment, *trials: Trial) -> tuner_pb2.WatchExperimentResponse:
    return tuner_pb2.WatchExperimentResponse(experiment=found, trials=trials)


def test_flags_say_what_is_tried(cloud: FakeCloud, isthmus: Isthmus) -> None:
    more = ("--at-most", "p99_ms=60", "--sampler", "grid", "--seed", "7", "--trials", "3", "--parallel", "2")
    more += ("--concurrency", "16", "--duration", "3s", "--target-latency", "50ms", "--rows", "2")
    ran = isthmus("tune", "run", "ranker", "--id", "e1", *FLAGS, *more, "--deadline", "10m")
    assert ran.code == 0, ran.err
    (request,) = cloud.tuner.asked(Create)
    assert (request.parent, request.experiment_id) == ("tenants/acme", "e1")
    assert request.request_id
    spec = request.spec
    assert spec.model == "tenants/acme/models/ranker"
    assert [(each.name, list(each.values)) for each in spec.parameters] == [
        ("max_batch_rows", [1, 16]),
        ("max_batch_delay_ms", [0, 2.5]),
    ]
    assert (spec.objective.metric, spec.objective.minimize) == ("goodput_rps", False)
    assert [(each.metric, each.at_most) for each in spec.constraints] == [("p99_ms", 60)]
    assert (spec.sampler, spec.seed, spec.max_trial_count, spec.parallel_trial_count) == (
        Spec.SAMPLER_GRID,
        7,
        3,
        2,
    )
    load = spec.load
    assert (load.concurrency, load.rows_per_request, load.duration.seconds) == (16, 2, 3)
    assert load.target_latency.ToMilliseconds() == 50
    assert spec.deadline.seconds == 600
    assert "wanted most goodput_rps, p99_ms at most 60" in ran.lines
    assert "load 16 callers of 2 rows for 3.0 s, in time within 50.0 ms" in ran.lines
    assert "trials 0 of 3" in ran.lines
    assert "max_batch_delay_ms 0, 2.5" in ran.lines


@pytest.mark.parametrize(
    ("objective", "minimize"), [("throughput_rps", False), ("p50_ms", True), ("peak_memory_bytes", True)]
)
def test_what_is_wanted_little_of_is_minimised(
    cloud: FakeCloud, isthmus: Isthmus, objective: str, minimize: bool
) -> None:
    ran = isthmus("tune", "run", "ranker", *FLAGS, "--objective", objective, "--rate", "100", "--dry-run")
    assert ran.code == 0, ran.err
    (request,) = cloud.tuner.asked(Create)
    assert request.validate_only
    assert request.spec.objective.minimize is minimize
    assert request.spec.load.rate_rps == 100
    assert "experiment none made: --dry-run only checks" in ran.lines
    assert not cloud.tuner.experiments


@pytest.mark.parametrize(
    "text",
    [
        """
model: ranker
parameters:
  - {name: max_batch_rows, values: [1, 4]}
sampler: SAMPLER_RANDOM
maxTrialCount: 2
objective: {metric: p99_ms, minimize: true}
constraints: [{metric: p50_ms, atMost: 60.5}]
load: {duration: 5s, targetLatency: 0.05s}
""",
        """
{"model": "tenants/acme/models/ranker", "parameters": [{"name": "max_batch_rows", "values": [1, 4]}],
 "sampler": "SAMPLER_RANDOM", "maxTrialCount": 2, "objective": {"metric": "p99_ms", "minimize": true},
 "constraints": [{"metric": "p50_ms", "atMost": 60.5}],
 "load": {"duration": "5s", "targetLatency": "50ms"}}
""",
    ],
)
def test_a_file_says_what_is_tried(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path, text: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    ran = isthmus("tune", "run", "--file", str(file))
    assert ran.code == 0, ran.err
    spec = cloud.tuner.asked(Create)[0].spec
    expected = Spec(
        model="tenants/acme/models/ranker",
        parameters=[tuner_pb2.Parameter(name="max_batch_rows", values=[1, 4])],
        sampler=Spec.SAMPLER_RANDOM,
        max_trial_count=2,
        objective=tuner_pb2.Objective(metric="p99_ms", minimize=True),
        constraints=[tuner_pb2.Constraint(metric="p50_ms", at_most=60.5)],
    )
    expected.load.duration.FromSeconds(5)
    expected.load.target_latency.FromMilliseconds(50)
    assert spec == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: ranker\nparameter: []\n", "experiment.yaml:2:1: experiment: unknown field 'parameter'"),
        ("model: ranker\nload: {duration: soon}\n", "experiment.load.duration: must be a duration"),
        ("parameters: []\n", "experiment.model: is missing"),
        ("model: a\n---\nmodel: b\n", "holds 2 documents; write one experiment"),
        ("", "holds 0 documents"),
        ("model: [", "is no YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    ran = isthmus("tune", "run", "--file", str(file))
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not cloud.tuner.asked(Create)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "name an ENDPOINT and what may --vary, or give a --file"),
        (("ranker",), 2, "--vary what?"),
        (("ranker", "--vary", "rows"), 2, "write NAME=VALUE"),
        (("ranker", "--vary", "rows=1,"), 2, "write NAME=VALUE"),
        (("ranker", "--vary", "=1"), 2, "write NAME=VALUE"),
        (("ranker", "--vary", "rows=nan"), 2, "write NAME=VALUE"),
        (("ranker", *FLAGS, "--at-most", "p99_ms"), 2, "write METRIC=VALUE"),
        (("ranker", *FLAGS, "--rate", "1", "--concurrency", "1"), 2, "two kinds of load"),
        (("ranker", *FLAGS, "--dry-run", "--watch"), 2, "--dry-run starts nothing"),
        (("ranker", "--file", "x"), 2, "leave out ENDPOINT"),
        (("--file", "x", "--seed", "1"), 2, "leave out --seed"),
        (("--file", "/nowhere"), 4, "/nowhere"),
    ],
)
def test_what_is_wrong_with_flags_is_told(
    cloud: FakeCloud, isthmus: Isthmus, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = isthmus("tune", "run", *arguments)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert not cloud.tuner.asked(Create)


def test_each_trial_is_told_as_it_ends_over_a_restart(cloud: FakeCloud, isthmus: Isthmus) -> None:
    failed = trial(2, state=Trial.STATE_FAILED, message="it didn't start")
    done = experiment(Experiment.STATE_SUCCEEDED, best=3)
    cloud.tuner.history.extend(
        [
            [seen(experiment()), seen(experiment(), trial(1, 500)), None],
            [None],
            [seen(experiment(), trial(1, 500), failed), seen(experiment(), trial(3))],
            [seen(done, trial(1, 500), failed, trial(3, 812))],
        ]
    )
    ran = isthmus("tune", "run", "ranker", "--id", "e1", "--vary", "max_batch_rows=1,4,16", "--watch")
    assert ran.code == 0, ran.err
    told = [line for line in ran.err.splitlines() if line.startswith("[")]
    assert told == [
        "[######--------------] 1/3  trial 1  max_batch_rows=1  goodput_rps 500 /s (490 to 510)"
        "  (best so far)",
        "[#############-------] 2/3  trial 2  max_batch_rows=4  FAILED: it didn't start"
        "  (best: trial 1, 500 /s (490 to 510))",
        "[####################] 3/3  trial 3  max_batch_rows=16  goodput_rps 812 /s (802 to 822)"
        "  (best so far)",
    ]
    assert ran.err.count("(waiting for it)") == 1
    assert "best trial 3: max_batch_rows=16" in ran.lines
    assert "goodput_rps 812 /s (802 to 822)" in ran.lines


@pytest.mark.parametrize("state", [Experiment.STATE_FAILED, Experiment.STATE_CANCELLED])
def test_an_experiment_that_does_not_succeed_is_no_success(
    cloud: FakeCloud, isthmus: Isthmus, state: Experiment.State.ValueType
) -> None:
    ended = experiment(state)
    ended.message = "no trial could be measured"
    cloud.tuner.experiments["e1"] = ended
    for arguments in (("watch", "e1"), ("watch", "tenants/acme/experiments/e1", "--json")):
        ran = isthmus("tune", *arguments)
        assert (ran.code, "no trial could be measured" in ran.err) == (1, True)
        assert ran.out
    assert ran.json["state"] == Experiment.State.Name(state)


def applied(state: Application.State.ValueType, *, message: str = "", after: float = 0.0) -> Experiment:
    found = experiment(Experiment.STATE_SUCCEEDED, best=3)
    found.application.trial = 3
    found.application.state = state
    found.application.message = message
    found.application.before.append(metric("goodput_rps", 400, 5))
    if after:
        found.application.after.append(metric("goodput_rps", after, 5))
    return found


def test_the_best_trial_is_applied_with_before_and_after(cloud: FakeCloud, isthmus: Isthmus) -> None:
    done = experiment(Experiment.STATE_SUCCEEDED, best=3)
    cloud.tuner.history.extend(
        [
            [seen(done, trial(3, 812))],
            [
                seen(applied(Application.STATE_MEASURING_BEFORE), trial(3, 812)),
                seen(applied(Application.STATE_MEASURING_AFTER)),
                seen(applied(Application.STATE_APPLIED, message="it gained", after=500)),
            ],
        ]
    )
    ran = isthmus("tune", "run", "ranker", "--id", "e1", *FLAGS, "--apply")
    assert ran.code == 0, ran.err
    assert "applying trial 3: measuring before" in ran.err
    assert "applying trial 3: measuring after" in ran.err
    assert ran.err.count("[####") == 1
    assert "goodput_rps 400 /s (395 to 405) 500 /s (495 to 505) +25.0%" in ran.lines
    assert ran.lines[-1] == "trial 3 APPLIED: it gained"
    (request,) = cloud.tuner.asked(tuner_pb2.ApplyExperimentRequest)
    assert (request.name, request.trial) == ("tenants/acme/experiments/e1", 0)


@pytest.mark.parametrize("state", [Application.STATE_ROLLED_BACK, Application.STATE_FAILED])
def test_what_is_rolled_back_is_no_success(
    cloud: FakeCloud, isthmus: Isthmus, state: Application.State.ValueType
) -> None:
    cloud.tuner.experiments["e1"] = experiment(Experiment.STATE_SUCCEEDED, best=3)
    cloud.tuner.on_apply = lambda found, number: found.CopyFrom(applied(state, message="worse", after=300))
    ran = isthmus("tune", "apply", "e1", "--trial", "2")
    assert ran.code == 1
    assert f"it is {Application.State.Name(state).removeprefix('STATE_')}: worse" in ran.err
    assert "-25.0%" in ran.out
    assert cloud.tuner.asked(tuner_pb2.ApplyExperimentRequest)[0].trial == 2
    as_json = isthmus("tune", "apply", "e1", "--json")
    assert as_json.json["application"]["state"] == Application.State.Name(state)
    assert as_json.error["reason"] == "NOT_APPLIED"


def test_trials_are_listed_with_the_best_one_marked(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.tuner.experiments["e1"] = applied(Application.STATE_APPLIED)
    broken = trial(2, 900)
    broken.feasible = False
    cloud.tuner.trials["e1"] = [
        trial(1, state=Trial.STATE_FAILED, message="it didn't start"),
        broken,
        trial(3, 812),
    ]
    rows = isthmus("tune", "trials", "e1").lines
    assert rows == [
        "TRIAL TRIED OUTCOME",
        "1 max_batch_rows=1 FAILED: it didn't start",
        "2 max_batch_rows=4 SUCCEEDED: breaks a constraint",
        "goodput_rps 900 /s (890 to 910)",
        "p99_ms 12.3 ms (11.3 to 13.3)",
        "3 max_batch_rows=16 SUCCEEDED: best, applied",
        "goodput_rps 812 /s (802 to 822)",
        "p99_ms 12.3 ms (11.3 to 13.3)",
    ]
    assert [each["number"] for each in isthmus("tune", "trials", "e1", "--json").json] == [1, 2, 3]
    got = isthmus("tune", "get", "e1").lines
    assert "best trial 3: max_batch_rows=16" in got
    assert "version ranker/v1" in got


def test_experiments_are_listed_cancelled_and_deleted(cloud: FakeCloud, isthmus: Isthmus) -> None:
    assert isthmus("tune", "list").out == "(none)\n"
    for name in ("e1", "e2"):
        found = applied(Application.STATE_ROLLED_BACK)
        found.name = f"tenants/acme/experiments/{name}"
        found.succeeded_count, found.failed_count = 2, 1
        cloud.tuner.experiments[name] = found
    row = isthmus("tune", "list").lines[1]
    assert row.startswith("e1 SUCCEEDED ranker most goodput_rps 3 of 3 (1 failed) trial 3 ROLLED_BACK")
    ran = isthmus("tune", "cancel", "e1", "e2")
    assert ran.lines[1:] == ["e1 CANCELLED 3 of 3 (1 failed)", "e2 CANCELLED 3 of 3 (1 failed)"]
    half = isthmus("tune", "cancel", "e1", "gone")
    assert (half.code, "done before: tenants/acme/experiments/e1" in half.err) == (4, True)
    assert isthmus("tune", "delete", "e1", "e2", "--etag", "1").code == 2
    assert isthmus("tune", "delete", "e1", "--json").json == {"deleted": "tenants/acme/experiments/e1"}
    assert isthmus("tune", "delete", "tenants/acme/experiments/e2").code == 0
    assert not cloud.tuner.experiments


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123, "0.00123"), (4.804, "4.80"), (39.14, "39.1"), (941.4, "941"), (1254.4, "1,254")],
)
def test_figures_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_a_figure_has_its_unit_and_its_interval() -> None:
    assert figure(metric("cpu_us_per_request", 685, 10)) == "685 µs (675 to 695)"
    assert figure(metric("peak_memory_bytes", 1024**2)) == "1.0 MiB"
    assert figure(metric("p50_ms", 5)) == "5.00 ms"


def test_no_point_is_counted_twice() -> None:
    spec = experiment().spec
    spec.max_trial_count = 20
    assert trial_total(spec) == 3
    spec.max_trial_count = 2
    assert trial_total(spec) == 2


def test_the_bar_is_never_longer_than_full() -> None:
    assert [bar(done, 4, 4) for done in (0, 1, 4, 9)] == ["[----]", "[#---]", "[####]", "[####]"]


def test_the_best_of_equals_is_the_first_and_none_breaks_a_constraint() -> None:
    spec = experiment().spec
    broken = trial(1, 900)
    broken.feasible = False
    found = best_of(spec, [broken, trial(3, 800), trial(2, 800), trial(4)])
    assert found is not None
    assert found.number == 2
    spec.objective.minimize = True
    spec.objective.metric = "p99_ms"
    assert best_of(spec, [broken]) is None


def test_trials_are_readable_in_80_columns(
    cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = applied(Application.STATE_APPLIED)
    cloud.tuner.experiments["e1"] = found
    wide = trial(3, 812)
    wide.point["intra_op_thread_count"] = 16
    wide.metrics.add(name="throughput_rps", value=12345, low=12000, high=12700)
    wide.metrics.add(name="peak_memory_bytes", value=2**30, low=2**30, high=2**30)
    cloud.tuner.trials["e1"] = [wide]
    monkeypatch.setattr(Output, "_width", staticmethod(lambda: 80))
    rows = isthmus("tune", "trials", "e1").lines
    assert rows == [
        "TRIAL TRIED OUTCOME",
        "3 intra_op_thread_count=16 SUCCEEDED: best, applied",
        "max_batch_rows=16 goodput_rps 812 /s (802 to 822)",
        "p99_ms 12.3 ms (11.3 to 13.3)",
        "throughput_rps 12,345 /s (12,000 to 12,700)",
        "peak memory 1.0 GiB",
    ]
