from pathlib import Path

import pytest

from libs.common.config import ConfigError, load
from services.engine.config import EngineConfig


def test_defaults_need_a_trust_folder_alone() -> None:
    config = load(EngineConfig, "engine", ["--identity-trust-dir=/keys"], {})
    assert (config.port, config.metrics_port) == (7420, 8420)
    assert config.identity_trust_dir == Path("/keys")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--identity-trust-dir="], "--identity-trust-dir: is missing"),
        (["--deployer-target=deployer.example:7410"], "give --deployer-ca-file"),
        (["--deployer-cert-file=/c.pem"], "give both or none"),
        (["--workers=0"], "use 1 to 256"),
        (["--worker-memory-bytes=1"], "use at least"),
        (["--worker=3"], "did you mean '--workers'?"),
    ],
)
def test_faults_are_told_with_what_to_do(flags: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(EngineConfig, "engine", ["--identity-trust-dir=/keys", *flags], {})
    assert text in str(refused.value)
