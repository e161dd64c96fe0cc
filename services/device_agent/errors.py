"""Errors that end the agent, and the exit codes by which whoever started it tells them apart."""

from libs.common.config import ConfigError
from libs.common.errors import Error, Invalid, Precondition

EXIT_FAULT = 1
"""A fault of ours: start it again."""
EXIT_CONFIG = 2
"""The configuration or the state folder can't be used: starting it again won't help."""
EXIT_ENROLMENT = 3
"""The cloud refuses this device: a new token, or another id, is needed."""


class EnrolmentRefused(Precondition):
    """The device can't become one of the tenant's."""

    default_reason = "ENROLMENT_REFUSED"


def exit_code(error: Error) -> int:
    """Return the exit code for an error that ends the agent."""
    if isinstance(error, EnrolmentRefused):
        return EXIT_ENROLMENT
    if isinstance(error, ConfigError | Invalid | Precondition):
        return EXIT_CONFIG
    return EXIT_FAULT
