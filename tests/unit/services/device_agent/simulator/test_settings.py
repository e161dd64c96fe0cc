"""The simulator's settings, roles and who may call it."""

import pytest
from google.protobuf import descriptor_pool

import services.device_agent.simulator.service  # noqa: F401 - registers the descriptors
from libs.common.config import ConfigError, load
from services.device_agent.__main__ import main
from services.device_agent.simulator.access import ACCESS
from services.device_agent.simulator.config import SimulatorConfig


def test_only_the_deployer_may_call_it() -> None:
    file = descriptor_pool.Default().FindFileByName("isthmus/device_agent/v1/simulator.proto")
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert methods == set(ACCESS)
    for access in ACCESS.values():
        assert (access.kinds, access.callers, access.public) == (frozenset(), {"deployer"}, False)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--identity-trust-dir: is missing"),
        (["--identity-trust-dir=t", "--deployer-cert-file=c"], "give both or none"),
        (["--identity-trust-dir=t", "--deployer-target=far:1"], "give --deployer-ca-file"),
        (["--identity-trust-dir=t", "--max-simulations=0"], "max-simulations"),
        (["--identity-trust-dir=t", "--host=0.0.0.0"], "give --tls-cert-file"),
    ],
)
def test_settings_that_cannot_be_right_are_told(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(SimulatorConfig, "simulator", flags, {})


def test_settings_come_from_the_environment_too() -> None:
    environ = {"ISTHMUS_SIMULATOR_IDENTITY_TRUST_DIR": "t", "ISTHMUS_SIMULATOR_MAX_SIMULATIONS": "5"}
    config = load(SimulatorConfig, "simulator", [], environ)
    assert (config.max_simulations, config.port, config.metrics_port) == (5, 7460, 8460)


def test_a_role_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "simulater"], {}) == 2
    assert "'simulater' is none of agent, simulator" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--role", "simulator"], ["--role=simulator"]])
def test_each_role_has_its_own_settings(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, "--help"], {}) == 0
    assert "--max-simulations" in capsys.readouterr().out
    assert main(["--help"], {}) == 0
    assert "--state-dir" in capsys.readouterr().out
