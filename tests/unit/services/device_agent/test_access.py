from isthmus.device_agent.v1 import device_agent_pb2
from services.device_agent.access import ACCESS


def test_every_method_has_a_rule_and_no_rule_is_left_over():
    service = device_agent_pb2.DESCRIPTOR.services_by_name["AgentService"]
    assert set(ACCESS) == {f"/{service.full_name}/{method.name}" for method in service.methods}
