from collections.abc import Iterator

import pytest

from deploy.local.stack import Stack
from tests.integration.system.wire import Handset
from tests.integration.system.world import WITHOUT_COMPUTE, Cloud, running_stack, tenant


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack for the tests of one module."""
    with running_stack(without=WITHOUT_COMPUTE, ISTHMUS_DEPLOYER_RECONCILE_INTERVAL_S="0.5") as stack:
        yield stack


@pytest.fixture(scope="module")
def cloud(stack: Stack) -> Iterator[Cloud]:
    """A tenant."""
    with tenant(stack, "ours") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def theirs(stack: Stack) -> Iterator[Cloud]:
    """Another tenant."""
    with tenant(stack, "theirs") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def handset(cloud: Cloud) -> Handset:
    """An enrolled device of the tenant."""
    return Handset(cloud, cloud.enrolment_token(), "handset")
