from pathlib import Path

import pytest

from libs.common.config import ConfigError, load
from services.gateway.tunnel.config import TunnelConfig

NEEDED = ("--data-dir", "/data", "--identity-trust-dir", "/trust")


def test_defaults() -> None:
    config = load(TunnelConfig, "tunnel", NEEDED, {})
    assert (config.port, config.partitions) == (7405, 8)
    assert config.log.retention_age_s == 7 * 86400.0
    assert config.limits.frame_bytes == 256 * 1024
    assert config.limits.streams == 64


def test_flags_win_over_the_environment() -> None:
    environ = {"ISTHMUS_TUNNEL_DATA_DIR": "/other", "ISTHMUS_TUNNEL_PARTITIONS": "2"}
    config = load(TunnelConfig, "tunnel", NEEDED, environ)
    assert config.data_dir == Path("/data")
    assert config.log.partitions == 2


def test_all_faults_come_in_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        load(TunnelConfig, "tunnel", ["--partitions", "0"], {})
    assert "--partitions" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(TunnelConfig, "tunnel", ["--retention-bytes", "2097152"], {})
    told = str(caught.value)
    assert "--data-dir: is required" in told
    assert "--identity-trust-dir: is required" in told
    assert "--retention-bytes: 2097152 is too little" in told


def test_what_serving_needs() -> None:
    with pytest.raises(ConfigError) as caught:
        load(TunnelConfig, "tunnel", [*NEEDED, "--serving-target=serving:7450", "--serving-cert-file=c"], {})
    told = str(caught.value)
    assert "--identity-key-file: is required with --serving-target" in told
    assert "off the loopback; give --serving-ca-file" in told
    assert "--serving-cert-file, --serving-key-file: give both or none" in told
    flags = [*NEEDED, "--serving-target=127.0.0.1:7450", "--identity-key-file=/k", "--max-requests=9"]
    assert load(TunnelConfig, "tunnel", flags, {}).limits.requests_in_all == 9
