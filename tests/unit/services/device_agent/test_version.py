import tomllib
from pathlib import Path

import services.device_agent
from libs.task.versions import parse_agent_version


def test_the_agents_version_is_the_projects_and_one_that_manifests_can_ask_for():
    root = Path(services.device_agent.__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["version"] == services.device_agent.AGENT_VERSION
    parse_agent_version(services.device_agent.AGENT_VERSION, "version")
