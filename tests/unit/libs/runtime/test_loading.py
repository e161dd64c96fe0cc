"""Plans from bytes with their checks, in processes that have no numpy."""

import subprocess
import sys

import pytest

from libs.common.errors import Invalid
from libs.runtime.codec import encode
from libs.runtime.loading import load_plan
from libs.runtime.testing import PlanBuilder, linear_plan


def test_a_sound_plan_comes_back() -> None:
    plan = linear_plan([1.0])
    assert load_plan(encode(plan), "click.plan") == plan


def test_faults_name_the_file() -> None:
    with pytest.raises(Invalid, match=r"click\.plan: plan: it can't be read") as caught:
        load_plan(b"\xff", "click.plan")
    assert (caught.value.reason, caught.value.metadata) == ("BAD_PLAN", {"file": "click.plan"})
    with pytest.raises(Invalid, match=r"^a: plan is of format 3\.0") as caught:
        load_plan(b"\x08\x03\x1a\x07sha256:", "a")
    assert caught.value.reason == "PLAN_VERSION"
    plan = PlanBuilder()
    x = plan.input("x", [4])
    plan.output("y", plan.compute("neg", [plan.view(x, [4], [1], 1)], [4]))
    with pytest.raises(Invalid, match=r"^a: plan: steps\[0\]\.inputs\[0\] reaches elements 1 to 4"):
        load_plan(encode(plan.build()), "a")


def test_no_numpy_is_imported() -> None:
    code = "import sys, libs.runtime.loading; print(sorted({'numpy', 'onnx', 'grpc'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
