"""What one may rely on when a command that starts something has returned."""

import pytest

from deploy.local.stack import Stack
from tests.integration.system.world import Cloud


@pytest.mark.parametrize(
    "restarted", [["deployer"], ["tunnel"], ["gateway"], []], ids=lambda names: "-".join(names) or "all"
)
def test_the_first_call_after_a_restart_is_answered(stack: Stack, cloud: Cloud, restarted: list[str]) -> None:
    stack.restart(*restarted)
    # The command: its connection is a new one, so that the gateway's own to the services is what counts.
    assert cloud.isthmus("task", "list") == [[]]
    assert cloud.isthmus("tunnel", "export") == []
    cloud.isthmus("key", "list")
