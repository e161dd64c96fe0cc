"""Containers as the manifests describe them, and the settings that the process in one would get."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from deploy.local.layout import ROOT
from libs.common.config import load
from services.deployer.config import DeployerConfig
from services.device_agent.simulator.config import SimulatorConfig
from services.engine.config import EngineConfig
from services.gateway.config import GatewayConfig
from services.gateway.tunnel.config import TunnelConfig
from services.scheduler.config import SchedulerConfig
from services.scheduler.runner.config import RunnerConfig
from services.serving.config import ServingServiceConfig
from services.tuner.config import TunerConfig

COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"
CONFIGURATIONS: Mapping[tuple[str, ...], tuple[str, type[Any]]] = {
    ("services.gateway",): ("gateway", GatewayConfig),
    ("services.gateway", "--role", "tunnel"): ("tunnel", TunnelConfig),
    ("services.deployer",): ("deployer", DeployerConfig),
    ("services.engine",): ("engine", EngineConfig),
    ("services.scheduler",): ("scheduler", SchedulerConfig),
    ("services.scheduler", "--role", "runner"): ("scheduler-runner", RunnerConfig),
    ("services.serving",): ("serving", ServingServiceConfig),
    ("services.tuner",): ("tuner", TunerConfig),
    ("services.device_agent", "--role", "simulator"): ("simulator", SimulatorConfig),
}
"""What reads the environment of a container with such a command, by what stands after `python -m`."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container: what runs in it, what it finds there."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: Mapping[str, str]
    """What is mounted, by path in the container: a volume's name, a file of this checkout."""
    probe: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether a service of ours runs in it, for as long as it is there."""
        return self.command[:2] == ("python", "-m") and self.command[2:] in CONFIGURATIONS

    @property
    def prefix(self) -> str:
        """The name by which the process reads its variables and signs."""
        return CONFIGURATIONS[self.command[2:]][0]

    def settings(self) -> Any:
        """Return what the process would make of its environment; fails where it would refuse it."""
        name, configuration = CONFIGURATIONS[self.command[2:]]
        return load(configuration, name, (), self.environment)

    def files(self) -> set[str]:
        """Return every path that the environment, the command or the probe names."""
        texts = [*self.environment.values(), *self.command, *self.probe]
        return {path for text in texts for path in re.findall(r"(?<![\w.:/])/[a-z][\w./-]+", text)}


def interpolated(node: Any) -> Any:
    """Return a parsed compose file with the defaults of its variables, as Docker does where none is set."""
    if isinstance(node, dict):
        return {key: interpolated(value) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolated(each) for each in node]
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", node) if isinstance(node, str) else node


def document(name: str) -> Any:
    """Return one of the compose files."""
    return interpolated(yaml.safe_load((COMPOSE / name).read_text("utf-8")))


def _mounts(volumes: Sequence[str], tmpfs: Sequence[str]) -> dict[str, str]:
    found = {volume.split(":")[1]: volume.split(":")[0] for volume in volumes}
    return found | {each.split(":")[0]: "tmpfs" for each in tmpfs}


def compose() -> dict[str, Container]:
    """Return the containers of docker-compose by name."""
    services = document("docker-compose.yml")["services"]
    return {
        name: Container(
            name,
            service["image"],
            tuple(service.get("command", ())),
            service.get("environment", {}),
            _mounts(service.get("volumes", ()), service.get("tmpfs", ())),
            tuple(service.get("healthcheck", {}).get("test", ()))[1:],
            service,
        )
        for name, service in services.items()
    }
