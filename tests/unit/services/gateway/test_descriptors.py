from pathlib import Path

from services.gateway.descriptors import all_methods


def test_the_descriptor_set_is_whole():
    services = {method.service for method in all_methods()}
    protos = Path(__file__).parents[4] / "protos"
    declared = {
        line.split()[1]
        for path in protos.rglob("*.proto")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("service ")
    }
    assert {service.rpartition(".")[2] for service in services} == declared
