from pathlib import Path

import pytest

from services.device_agent.config import AgentConfig


def faults(**settings):
    return list(AgentConfig(state_dir=Path("state"), device_id="d1", **settings).validate())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "device.example", ""])
def test_metrics_are_refused_off_the_loopback_since_they_ask_nobody_who_they_are(host):
    (fault,) = faults(metrics_host=host, metrics_port=9000)
    assert fault.startswith("--metrics-host: ")
    assert "off the loopback" in fault


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 9000), ("::1", 0), ("localhost", 0), ("0.0.0.0", -1)]
)
def test_on_the_loopback_or_without_a_port_they_are_fine(host, port):
    assert faults(metrics_host=host, metrics_port=port) == []
