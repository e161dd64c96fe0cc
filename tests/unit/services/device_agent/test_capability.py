"""What can run on this device, said before anything is fetched."""

import pytest

from libs.common.errors import Precondition
from libs.task.manifest import check_manifest
from libs.task.testing import add_model, make_manifest
from services.device_agent.capability import check_runs_here


def test_a_model_needs_numpy_and_a_script_doesnt() -> None:
    manifest = make_manifest()
    check_runs_here(check_manifest(manifest), find=lambda name: None)
    add_model(manifest, b"plan")
    check_runs_here(check_manifest(manifest), find=lambda name: name)
    with pytest.raises(Precondition, match=r"genres@1\.0\.0 has a model, and numpy") as caught:
        check_runs_here(check_manifest(manifest), find=lambda name: None)
    assert caught.value.reason == "MODEL_UNSUPPORTED"


def test_a_version_for_a_newer_agent_is_refused() -> None:
    manifest = make_manifest()
    manifest.min_agent_version = "99.0.0"
    with pytest.raises(Precondition) as caught:
        check_runs_here(check_manifest(manifest))
    assert caught.value.reason == "AGENT_TOO_OLD"


def test_asking_models_needs_numpy_too() -> None:
    manifest = make_manifest()
    manifest.endpoints.add(model="ranker").inputs.add(name="item", datatype="INT64")
    manifest.min_agent_version = "0.3.0"
    check_runs_here(check_manifest(manifest), find=lambda name: name)
    with pytest.raises(Precondition, match=r"genres@1\.0\.0 asks models, and numpy") as caught:
        check_runs_here(check_manifest(manifest), find=lambda name: None)
    assert caught.value.reason == "MODEL_UNSUPPORTED"
