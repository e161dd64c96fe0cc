import pytest

from libs.common.config import ConfigError, load
from services.deployer.config import DeployerConfig

TRUST = "--identity-trust-dir=t"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--identity-trust-dir: is missing"),
        ([TRUST, "--simulator-target=far:7460"], "'far:7460' is off the loopback; give --simulator-ca-file"),
        ([TRUST, "--simulator-key-file=k"], "--simulator-cert-file, --simulator-key-file: give both or none"),
        ([TRUST, "--simulator-timeout-s=0"], "--simulator-timeout-s"),
        ([TRUST, "--next-signing-key-file=var/deployer/signing.key"], "is the same file"),
    ],
)
def test_settings_that_cannot_be_right_are_told(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(DeployerConfig, "deployer", flags, {})


def test_a_simulator_is_optional() -> None:
    assert load(DeployerConfig, "deployer", [TRUST], {}).simulator_target == ""
    environ = {"ISTHMUS_DEPLOYER_SIMULATOR_TARGET": "127.0.0.1:7460"}
    assert load(DeployerConfig, "deployer", [TRUST], environ).simulator_target == "127.0.0.1:7460"
    far = [TRUST, "--simulator-target=far:7460", "--simulator-ca-file=ca"]
    assert load(DeployerConfig, "deployer", far, {}).simulator_target == "far:7460"
