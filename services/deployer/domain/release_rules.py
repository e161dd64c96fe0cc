"""What a release must keep to, whatever the state: steps, gates, texts."""

from collections.abc import Sequence
from datetime import timedelta

from libs.common.errors import Invalid
from services.deployer.domain.buckets import SHARES
from services.deployer.domain.model import Gate
from services.deployer.domain.texts import check_text

MAX_STEPS = 20
MAX_REASON_BYTES = 1024
MAX_TIME = timedelta(days=365)
MAX_MIN_REPORTS = 1_000_000_000


def check_shares(shares: Sequence[int]) -> None:
    """Raise Invalid unless there are 1 to 20 ascending shares of 1 to 10,000 basis points."""
    if not 1 <= len(shares) <= MAX_STEPS:
        raise Invalid(f"steps_percent: has {len(shares)} steps; give 1 to {MAX_STEPS}", reason="BAD_STEPS")
    for index, share in enumerate(shares):
        if not 1 <= share <= SHARES:
            raise Invalid(
                f"steps_percent[{index}]: {share / 100:g} is not above 0 and at most 100", reason="BAD_STEPS"
            )
        if index and share <= shares[index - 1]:
            raise Invalid(
                f"steps_percent[{index}]: {share / 100:g} doesn't ascend from {shares[index - 1] / 100:g}; "
                "give each step a larger share than the one before, such as 10, 50, 100",
                reason="BAD_STEPS",
            )


def share_of(value: float, index: int) -> int:
    """Return percents as basis points; raise Invalid unless 0 < p <= 100 with at most two decimals."""
    share = round(value * 100) if 0 < value <= 100 else 0  # NaN compares false
    if not share or abs(share - value * 100) > 1e-6:
        raise Invalid(
            f"steps_percent[{index}]: {value:.10g} is no share of the devices; give percents above 0, "
            "at most 100, with at most two decimals",
            reason="BAD_STEPS",
            metadata={"field": f"steps_percent[{index}]"},
        )
    return share


def check_gate(gate: Gate) -> None:
    """Raise Invalid unless percents are within 0 to 100 and times within 0 to 365 days."""
    for field, value in (
        ("confirmed_percent", gate.confirmed_percent),
        ("failed_percent", gate.failed_percent),
    ):
        if not 0 <= value <= 100:  # also refuses NaN
            raise Invalid(f"gate.{field}: {value:g} is not between 0 and 100", reason="BAD_GATE")
    for field, time in (("soak_time", gate.soak_time), ("step_timeout", gate.step_timeout)):
        if not timedelta(0) <= time <= MAX_TIME:
            raise Invalid(
                f"gate.{field}: {time.total_seconds():g} s is not between 0 and {MAX_TIME.days} days",
                reason="BAD_GATE",
            )
    if gate.step_timeout <= gate.soak_time:
        raise Invalid(
            f"gate.step_timeout: {gate.step_timeout.total_seconds():g} s is not longer than the soak_time, "
            f"{gate.soak_time.total_seconds():g} s, so that every step would time out",
            reason="BAD_GATE",
        )
    if gate.min_report_count > MAX_MIN_REPORTS:
        raise Invalid(f"gate.min_report_count: is more than {MAX_MIN_REPORTS}", reason="BAD_GATE")


def check_reason(reason: str) -> None:
    """Raise Invalid when the words for the audit are too long."""
    check_text(reason, "reason", MAX_REASON_BYTES)
