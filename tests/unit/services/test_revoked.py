"""A revoked device is told the same by whichever service tells it first."""

from libs.common.names import DeviceName
from services.deployer.domain.fleet import revoked_error as by_deployer
from services.gateway.domain.push import revoked_error as by_gateway


def test_a_revoked_device_is_told_the_same_by_gateway_and_deployer() -> None:
    name = DeviceName("acme", "d1")
    here, there = by_gateway(), by_deployer(name)
    assert (here.reason, here.retriable) == (there.reason, there.retriable) == ("DEVICE_REVOKED", False)
    assert there.message == f"{name}: {here.message}"
    assert "enrol it under a new id" in here.message
