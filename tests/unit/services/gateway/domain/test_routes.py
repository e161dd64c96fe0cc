import pytest

from services.gateway.domain.routes import Method


@pytest.mark.parametrize(
    ("path", "upstream"),
    [
        ("/isthmus.deployer.v1.TaskService/GetTask", "deployer"),
        ("/isthmus.device_agent.v1.AgentService/GetStatus", "device_agent"),
        ("/inference.GRPCInferenceService/ModelInfer", "serving"),
        ("/grpc.health.v1.Health/Check", ""),
        ("/isthmus.X/Y", ""),
        ("/x/y", ""),
    ],
)
def test_the_package_says_who_answers(path, upstream):
    assert Method(path, False, False).upstream == upstream


def test_a_method_knows_its_parts():
    method = Method("/isthmus.deployer.v1.TaskService/GetTask", False, False)
    assert (method.service, method.name) == ("isthmus.deployer.v1.TaskService", "GetTask")
