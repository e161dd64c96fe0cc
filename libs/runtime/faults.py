"""The reasons for which a plan or its inputs are refused, and how the messages about them begin."""

from libs.common.errors import Invalid

BAD_PLAN = "BAD_PLAN"
"""The plan breaks a rule: whoever made it has to make another."""
PLAN_VERSION = "PLAN_VERSION"
"""The plan is of another major version: a runtime of that version can run it."""
BAD_INPUT = "BAD_INPUT"
"""The inputs of a call don't fit the plan."""
TOO_MUCH_MEMORY = "TOO_MUCH_MEMORY"
"""A call with these sizes needs more than its bound."""
TOO_MUCH_WORK = "TOO_MUCH_WORK"
"""A call with these sizes would compute longer than its bound."""


def bad_plan(where: str, text: str) -> Invalid:
    """Return the error for a plan that breaks a rule at `where`."""
    return Invalid(f"plan: {where} {text}", reason=BAD_PLAN)


def bad_input(text: str) -> Invalid:
    """Return the error for inputs that don't fit."""
    return Invalid(text, reason=BAD_INPUT)
