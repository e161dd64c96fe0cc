"""The same model gives the same plan, byte for byte, whatever order a process hashes texts in."""

import hashlib
import os
import subprocess
import sys

import pytest

from services.engine.testing_models import MODELS

PROGRAM = """
import hashlib, sys
from libs.runtime.codec import encode
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_models import MODELS
model = MODELS[sys.argv[1]]()
plan = compile_model(model, {"batch": (1, 9)}, "the test", Stages(lambda stage: None)).plan
print(hashlib.sha256(model).hexdigest(), hashlib.sha256(encode(plan)).hexdigest())
"""


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_does_not_depend_on_the_process(name: str) -> None:
    seen = set()
    for seed in ("1", "2", "3"):
        environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, env=environment, check=True
        )
        seen.add(tuple(run.stdout.split()))
    ((model, _),) = seen
    assert model == hashlib.sha256(MODELS[name]()).hexdigest()
