"""What a specification must hold. Every message names the field, the value and the remedy."""

import math

from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from services.tuner.domain.model import Constraint, Load, Objective, Parameter, Spec

MOST_TRIALS = 1000
MOST_PARALLEL = 16
MOST_PARAMETERS = 16
MOST_VALUES = 64
MOST_CONSTRAINTS = 16
MOST_CONCURRENCY = 256
MOST_RATE_RPS = 100_000.0
MOST_ROWS = 4096
DURATION_S = (1.0, 600.0)
MOST_TARGET_S = 60.0
MOST_DEADLINE_S = 7 * 86_400.0

PARAMETERS: dict[str, tuple[float, float, bool]] = {
    "max_batch_rows": (1, 4096, True),
    "max_batch_delay_ms": (0, 10_000, False),
    "instance_count": (1, 64, True),
    "intra_op_thread_count": (1, 64, True),
}
"""What may vary: least, greatest, whether whole."""

METRICS = ("goodput_rps", "throughput_rps", "p50_ms", "p99_ms", "cpu_us_per_request", "peak_memory_bytes")
LOAD_METRICS = METRICS[:4]
"""Those that are known without looking at the server's process."""
LARGER_IS_BETTER = frozenset({"goodput_rps", "throughput_rps"})


def check_spec(spec: Spec) -> None:
    """Raise Invalid for what can't be searched."""
    _check_parameters(spec.parameters)
    _bounded("spec.max_trial_count", spec.max_trials, 1, MOST_TRIALS)
    _bounded("spec.parallel_trial_count", spec.parallel_trials, 1, MOST_PARALLEL)
    _bounded("spec.max_failure_count", spec.max_failures, 1, MOST_TRIALS)
    _bounded("spec.deadline", spec.deadline_s, 1, MOST_DEADLINE_S)
    _check_objective(spec.objective)
    _check_constraints(spec.constraints)
    check_load(spec.load)


def check_load(load: Load) -> None:
    """Raise Invalid for a load that can't be made."""
    _bounded("spec.load.concurrency", load.concurrency, 1, MOST_CONCURRENCY)
    _bounded("spec.load.rate_rps", load.rate_rps, 0, MOST_RATE_RPS)
    _bounded("spec.load.duration", load.duration_s, *DURATION_S)
    _bounded("spec.load.target_latency", load.target_s, 0.0001, MOST_TARGET_S)
    _bounded("spec.load.rows_per_request", load.rows, 1, MOST_ROWS)


def _check_parameters(parameters: tuple[Parameter, ...]) -> None:
    _bounded("spec.parameters", len(parameters), 1, MOST_PARAMETERS, "entries")
    seen: set[str] = set()
    for index, parameter in enumerate(parameters):
        field = f"spec.parameters[{index}]"
        if parameter.name not in PARAMETERS:
            raise _unknown(f"{field}.name", parameter.name, tuple(PARAMETERS))
        if parameter.name in seen:
            raise _invalid(f"{field}.name", f"{shown(parameter.name)} comes twice; name it once")
        seen.add(parameter.name)
        least, most, whole = PARAMETERS[parameter.name]
        _bounded(f"{field}.values", len(parameter.values), 1, MOST_VALUES, "entries")
        for value in parameter.values:
            _bounded(f"{field}.values", value, least, most)
            if whole and value != int(value):
                raise _invalid(f"{field}.values", f"{value:g} isn't whole; {parameter.name} is a count")
        if list(parameter.values) != sorted(set(parameter.values)):
            raise _invalid(f"{field}.values", "don't ascend; give each value once, the smallest first")


def _check_objective(objective: Objective) -> None:
    if objective.metric not in METRICS:
        raise _unknown("spec.objective.metric", objective.metric, METRICS)
    if objective.minimize == (objective.metric in LARGER_IS_BETTER):
        remedy = "leave it unset" if objective.minimize else "set it"
        raise _invalid(
            "spec.objective.minimize",
            f"{str(objective.minimize).lower()} asks for the worst {objective.metric}; {remedy}",
        )


def _check_constraints(constraints: tuple[Constraint, ...]) -> None:
    _bounded("spec.constraints", len(constraints), 0, MOST_CONSTRAINTS, "entries")
    for index, constraint in enumerate(constraints):
        field = f"spec.constraints[{index}]"
        if constraint.metric not in METRICS:
            raise _unknown(f"{field}.metric", constraint.metric, METRICS)
        if not math.isfinite(constraint.at_most):
            raise _invalid(f"{field}.at_most", f"{constraint.at_most} isn't a number; give the largest value")
        if constraint.at_most < 0:
            raise _invalid(
                f"{field}.at_most",
                f"{constraint.at_most:g} is below 0, where no {constraint.metric} is; give the largest value",
            )


def _bounded(field: str, value: float, least: float, most: float, unit: str = "") -> None:
    if not (math.isfinite(value) and least <= value <= most):
        of = f" {unit}" if unit else ""
        raise _invalid(field, f"{value:g}{of} is not between {least:g} and {most:g}")


def _unknown(field: str, value: str, known: tuple[str, ...]) -> Invalid:
    hint = did_you_mean(value, known) if len(value) <= 80 else ""
    return _invalid(field, f"{shown(value)} is unknown{hint}; use one of {', '.join(known)}")


def _invalid(field: str, text: str) -> Invalid:
    return Invalid(f"{field}: {text}", reason="BAD_SPEC", metadata={"field": field})
