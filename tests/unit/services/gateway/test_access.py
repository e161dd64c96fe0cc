from libs.common.access import SCOPES
from services.gateway.access import ACCESS, ANONYMOUS, DoorAccess
from services.gateway.descriptors import all_methods


def test_every_method_of_the_gateway_has_a_rule_and_every_rule_a_method():
    own = {method.path for method in all_methods() if method.upstream == "gateway"}
    assert own == {path for path in ACCESS if path.startswith("/isthmus.")}
    assert {rule.scope for rule in ACCESS.values()} <= SCOPES | {""}


def test_every_routed_method_asks_for_somebody_known_but_enrolment():
    methods = [method for method in all_methods() if method.upstream == "deployer"]
    rules = DoorAccess(methods)
    assert {method.path for method in methods if rules[method.path].public} == ANONYMOUS
    assert all(
        rules[method.path].kinds == {"user", "device"} for method in methods if method.path not in ANONYMOUS
    )
    assert set(rules) >= set(ACCESS)
    assert len(rules) == len(ACCESS) + len(methods)
