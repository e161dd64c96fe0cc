import pytest

from libs.common.errors import Forbidden, NotFound
from libs.common.identity import Identity, acting_as
from services.serving.app import NAME
from services.serving.callers import caller_tenant, require_own
from services.serving.testing import user


def service(on_behalf_of: str) -> Identity:
    return Identity("", "tunnel", "service", frozenset(), NAME, on_behalf_of)


def test_a_user_means_its_own_tenants_models() -> None:
    with acting_as(user("acme")):
        assert caller_tenant() == "acme"
        assert require_own("acme") == "acme"
        with pytest.raises(NotFound):
            require_own("rival")


@pytest.mark.parametrize("on_behalf_of", ["tenants/acme", "tenants/acme/devices/d1"])
def test_a_service_means_those_of_whom_it_calls_for(on_behalf_of: str) -> None:
    with acting_as(service(on_behalf_of)):
        assert caller_tenant() == "acme"


@pytest.mark.parametrize("on_behalf_of", ["", "tenants", "devices/d1"])
def test_a_service_that_calls_for_nobody_is_refused(on_behalf_of: str) -> None:
    with acting_as(service(on_behalf_of)), pytest.raises(Forbidden, match="on behalf of no tenant"):
        caller_tenant()
