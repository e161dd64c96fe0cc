"""Who may call what."""

import pytest

from isthmus.tuner.v1 import tuner_pb2
from libs.common.access import SCOPES
from libs.common.errors import Forbidden
from services.tuner.access import ACCESS, check_may_apply
from services.tuner.relay import ACCESS as RELAY
from services.tuner.testing import user


def test_every_method_has_an_entry_of_a_known_scope():
    service = tuner_pb2.DESCRIPTOR.services_by_name["ExperimentService"]
    assert set(ACCESS) == {f"/{service.full_name}/{method.name}" for method in service.methods}
    for access in ACCESS.values():
        assert access.scope in SCOPES
        assert (access.kinds, access.callers, access.public) == (frozenset({"user"}), frozenset(), False)


def test_applying_takes_the_right_to_change_models():
    check_may_apply(user("acme", "experiments:write", "models:write"))
    with pytest.raises(Forbidden, match="models:write"):
        check_may_apply(user("acme", "experiments:*", "models:read"))


def test_only_instances_may_read_from_the_relay_and_nobody_writes():
    assert {name.rpartition("/")[2] for name in RELAY} == {"StatBlob", "ReadBlob"}
    assert all((a.kinds, a.callers) == (frozenset(), frozenset({"serving"})) for a in RELAY.values())
