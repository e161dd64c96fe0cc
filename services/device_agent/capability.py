"""What this agent and its device can run."""

import sys
from collections.abc import Callable
from importlib.util import find_spec

from libs.common.errors import Precondition
from libs.task.manifest import CheckedManifest
from services.device_agent import AGENT_VERSION

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def check_runs_here(manifest: CheckedManifest, find: Callable[[str], object] = find_spec) -> None:
    """Raise Precondition unless a version can run here.

    Reasons: AGENT_TOO_OLD, PYTHON_UNSUPPORTED, and MODEL_UNSUPPORTED where `find` finds no numpy, which only
    models need, on the device or in the cloud; nothing is imported.
    """
    manifest.check_runs_on(AGENT_VERSION, PYTHON_VERSION)
    if (manifest.model is not None or manifest.endpoints) and find("numpy") is None:
        text = "has a model, and numpy, which runs models, isn't installed beside this agent"
        if manifest.model is None:
            text = "asks models, and numpy, which their answers come in, isn't installed beside this agent"
        raise Precondition(f"{manifest.key} {text} (isthmus[device-agent])", reason="MODEL_UNSUPPORTED")
