"""The tuner's settings."""

import pytest

from libs.common.config import ConfigError, load
from services.tuner.config import TunerConfig


def loaded(*argv):
    return load(TunerConfig, "tuner", argv, {"ISTHMUS_TUNER_IDENTITY_TRUST_DIR": "/trust"})


def test_ports_are_those_of_the_stack():
    config = loaded()
    assert (config.port, config.metrics_port) == (7440, 8440)
    assert (config.serving_target, config.deployer_target) == ("127.0.0.1:7450", "127.0.0.1:7410")
    assert config.most_trials == 1


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (["--serving-target=serving.example:7450"], "--serving-target: .* give --upstream-ca-file"),
        (["--deployer-target=10.0.0.1:7410"], "--deployer-target: .* give --upstream-ca-file"),
        (["--upstream-cert-file=/c.pem"], "give both or none"),
        (["--most-trials=0"], "most-trials"),
        (["--start-s=0"], "start-s"),
    ],
)
def test_faults_are_named(argv, fault):
    with pytest.raises(ConfigError, match=fault):
        loaded(*argv)


def test_without_a_trust_folder_it_does_not_start():
    with pytest.raises(ConfigError, match="identity-trust-dir"):
        load(TunerConfig, "tuner", [], {})
