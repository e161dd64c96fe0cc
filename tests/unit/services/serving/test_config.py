import pytest

from libs.common.config import ConfigError, load
from services.serving.config import ServingServiceConfig


def test_large_messages_are_taken_by_default() -> None:
    config = load(ServingServiceConfig, "serving", ["--identity-trust-dir=keys"], {})
    assert config.port == 7450
    assert config.max_message_bytes >= 100 * 1024 * 1024
    assert config.pin_blobs


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            ServingServiceConfig, "serving", ["--deployer-target=example.org:1", "--deployer-cert-file=c"], {}
        )
    assert [fault.partition(":")[0] for fault in caught.value.faults] == [
        "--deployer-cert-file, --deployer-key-file",
        "--deployer-target",
        "--identity-trust-dir",
    ]
