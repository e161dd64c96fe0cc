import re

import pytest

from libs.common.config import ConfigError, load
from services.gateway.config import GatewayConfig

NEEDED = ("--identity-key-file=k", "--identity-trust-dir=t")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((*NEEDED, "--upstreams=deployer"), "NAME=HOST:PORT"),
        ((*NEEDED, "--upstreams==x:1"), "NAME=HOST:PORT"),
        ((*NEEDED, "--upstreams=a=x:1,a=y:1"), "twice"),
        (NEEDED[1:], "--identity-key-file"),
        (NEEDED[:1], "--identity-trust-dir"),
        ((*NEEDED, "--upstream-cert-file=c"), "both or none"),
        ((*NEEDED, "--host=0.0.0.0"), "--tls-cert-file"),
    ],
)
def test_a_wrong_setting_is_told_once(flags, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        load(GatewayConfig, "gateway", flags, {})
    assert len(caught.value.faults) == 1


def test_good_settings_have_no_faults():
    config = load(GatewayConfig, "gateway", NEEDED, {"ISTHMUS_GATEWAY_UPSTREAMS": "a=x:1,b=y:2"})
    assert config.targets() == [("a", "x:1"), ("b", "y:2")]
    with_tls = (*NEEDED, "--host=0.0.0.0", "--tls-cert-file=c", "--tls-key-file=k")
    assert load(GatewayConfig, "gateway", with_tls, {})  # people come without certificates
