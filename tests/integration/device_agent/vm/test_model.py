"""Runs with a model: the plan between the scripts, what it is given and gives, and what is wrong with one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.engine.v1 import plan_pb2
from libs.common.errors import Invalid
from libs.runtime.codec import encode
from libs.runtime.plan import DataType, Plan
from libs.runtime.testing import PlanBuilder, linear_plan
from services.device_agent.vm import Execution, LoadedTask, Outcome, Phase, Reason, TaskVm
from services.device_agent.vm.model import MIB
from services.device_agent.vm.testing import build_model, build_task

PRE = "def pre(c): return {'x': [[1.0, 0.0], [0.0, 2.0]]}"
POST = """
def post(c, outputs):
    p = outputs["probability"]
    c.send("clicks", {"p": float(p.max())})
    return {"type": type(p).__name__, "dtype": str(p.dtype), "p": [round(v, 4) for v in p.tolist()]}
"""


def _task(folder: Path, plan: Plan | bytes, scripts: Mapping[Phase, str], **changes: Any) -> LoadedTask:
    data = encode(plan) if isinstance(plan, Plan) else plan
    model = build_model(folder, data)
    return build_task(scripts, model=model, resource_root=folder, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tasks" / "click"
    made.mkdir(parents=True)
    return made


@pytest.fixture
async def model_vm(make_vm, folder: Path) -> TaskVm:
    return await make_vm(workers=1, readable=(folder.parent,), max_growth_bytes=32 * MIB)


async def _once(vm: TaskVm, task: LoadedTask, **execution: Any) -> Outcome:
    loaded = await vm.load(task)
    assert loaded.ok, loaded
    return await vm.execute(Execution(task.task, task.version, **execution))


async def test_the_plan_runs_between_the_scripts(model_vm: TaskVm, folder: Path) -> None:
    task = _task(folder, linear_plan([1.0, -1.0]), {Phase.PRE: PRE, Phase.POST: POST})
    outcome = await _once(model_vm, task)
    assert outcome.value == {"type": "ndarray", "dtype": "float32", "p": [0.7311, 0.1192]}
    assert outcome.sends[0].fields["p"] == pytest.approx(0.7311, abs=1e-4)


async def test_pre_may_give_arrays_and_without_post_the_outputs_are_the_result(
    model_vm: TaskVm, folder: Path
) -> None:
    pre = "import numpy\ndef pre(c): return {'x': numpy.array([[3, 3]], numpy.float32)}"
    outcome = await _once(model_vm, _task(folder, linear_plan([1.0, -1.0]), {Phase.PRE: pre}))
    assert outcome.value == {"probability": [0.5]}


async def test_without_pre_the_model_takes_features(model_vm: TaskVm, folder: Path) -> None:
    plan = PlanBuilder()
    count = plan.input("clicks.count", [])
    seen = plan.input("views.ids", [plan.dimension("views")], DataType.INT64)
    plan.output("count", count)
    plan.output("seen", seen)
    features = {"clicks": {"count": 3, "other": "x"}, "views": {"ids": [5, 7]}, "more": {"n": 1}}
    post = "def post(c, o): return {'count': float(o['count']), 'seen': o['seen'].tolist()}"
    alone = await _once(model_vm, _task(folder, plan.build(), {}), features=features)
    assert alone.value == {"count": 3.0, "seen": [5, 7]}
    behind = _task(folder, plan.build(), {Phase.POST: post}, version="2")
    assert (await _once(model_vm, behind, features=features)).value == {"count": 3.0, "seen": [5, 7]}
    missing = await model_vm.execute(Execution("probe", "2", features={"clicks": {"count": 3}}))
    assert missing.reason is Reason.BAD_INPUT
    assert "input 'views.ids' (views.ids: int64[views]) is missing" in missing.message


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("{'x': [[1.0]]}", r"model.plan: input 'x' has the shape [1, 1]; it must be [batch, 2]"),
        ("{'x': [['a', 'b']]}", "must hold float32"),
        ("{'y': [[1.0, 2.0]]}", "input 'x' (x: float32[batch, 2]) is missing; given was 'y'"),
        ("[1.0]", "inputs must be a mapping from name to array, not list"),
        ("None", "not NoneType"),
        ("{'x': [[0.0, 0.0]] * 5000}", "dimension 'batch' is 5000; the plan was made for sizes 1 to 4096"),
    ],
)
async def test_what_doesnt_fit_is_a_failure_of_the_run(
    model_vm: TaskVm, folder: Path, returned: str, says: str
) -> None:
    task = _task(folder, linear_plan([1.0, -1.0]), {Phase.PRE: f"def pre(c): return {returned}"})
    outcome = await _once(model_vm, task)
    assert outcome.reason is Reason.BAD_INPUT
    assert says in outcome.message


def _changed(**changes: Any) -> bytes:
    message = plan_pb2.Plan.FromString(encode(linear_plan([1.0])))
    for name, value in changes.items():
        setattr(message, name, value)
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            _changed(major=9),
            "model.plan: plan is of format 9.0; this runtime reads format 2: update the runtime",
        ),
        (_changed(model_digest="x"), "model.plan: plan: model_digest must be"),
        (b"PK\x03\x04", "it is no plan, or it is damaged"),
        (b"", "model.plan: plan: it is empty"),
    ],
)
async def test_a_plan_that_cant_be_run_doesnt_load(
    model_vm: TaskVm, folder: Path, data: bytes, says: str
) -> None:
    outcome = await model_vm.load(_task(folder, data, {Phase.PRE: PRE}))
    assert outcome.reason is Reason.LOAD_ERROR
    assert says in outcome.message


async def test_a_plan_that_isnt_what_the_manifest_says_doesnt_load(model_vm: TaskVm, folder: Path) -> None:
    task = _task(folder, linear_plan([1.0]), {Phase.PRE: PRE})
    (folder / "model.plan").write_bytes(encode(linear_plan([2.0])))
    outcome = await model_vm.load(task)
    assert outcome.reason is Reason.LOAD_ERROR
    assert "model.plan has the digest" in outcome.message
    (folder / "model.plan").unlink()
    assert "model.plan can't be read" in (await model_vm.load(task)).message


async def test_a_plan_without_a_folder_is_the_callers_fault(model_vm: TaskVm, folder: Path) -> None:
    task = _task(folder, linear_plan([1.0]), {Phase.PRE: PRE})
    with pytest.raises(Invalid, match="no folder where its plan lies"):
        await model_vm.load(replace(task, resource_root=None))
    with pytest.raises(Invalid, match="neither script nor model"):
        await model_vm.load(replace(task, scripts=(), model=None))


async def test_a_device_without_numpy_says_so(model_vm: TaskVm, folder: Path) -> None:
    """A script of an earlier task has broken the import; a missing package looks the same."""
    breaks = build_task("import sys\nsys.modules['numpy'] = None\ndef post(c): return {}", task="breaks")
    assert (await model_vm.load(breaks)).ok
    outcome = await model_vm.load(_task(folder, linear_plan([1.0]), {Phase.PRE: PRE}))
    assert outcome.reason is Reason.LOAD_ERROR
    assert outcome.message.startswith("this device can't run models: ")
    assert "numpy" in outcome.message


async def test_the_runtime_stays_out_of_the_scripts_reach(model_vm: TaskVm, folder: Path) -> None:
    post = """
    import importlib, sys
    def post(c, outputs):
        found = []
        for name in ("libs", "libs.runtime", "libs.runtime.program", "libs.common.errors", "services"):
            try:
                importlib.import_module(name)
                found.append(name)
            except ModuleNotFoundError:
                pass
        loaded = [n for n in sys.modules if n.split(".")[0] in ("libs", "services") or n.startswith("isthmus.engine")]
        return {"found": found, "loaded": loaded, "path": sys.path}
    """  # noqa: E501
    task = _task(folder, linear_plan([1.0, -1.0]), {Phase.PRE: PRE, Phase.POST: post})
    outcome = await _once(model_vm, task)
    assert outcome.value is not None
    assert (outcome.value["found"], outcome.value["loaded"]) == ([], [])
    assert str(Path(__file__).parents[4]) not in outcome.value["path"]
    again = _task(folder, linear_plan([2.0, -1.0]), {Phase.PRE: PRE}, task="second")
    assert (await _once(model_vm, again)).ok


async def test_a_script_cant_pass_for_the_runtime(model_vm: TaskVm, folder: Path) -> None:
    source = """
    import sys, types
    fake = types.ModuleType("libs.runtime.program")
    fake.Program = fake.warm_up = lambda *a, **k: None
    for name in ("libs", "libs.runtime"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["libs.runtime.program"] = fake
    def post(c): return {}
    """
    assert (await model_vm.load(build_task(source, task="fakes"))).ok
    outcome = await _once(model_vm, _task(folder, linear_plan([1.0, -1.0]), {Phase.PRE: PRE}))
    assert outcome.ok, outcome


async def test_many_runs_keep_one_worker(model_vm: TaskVm, folder: Path) -> None:
    """What a model holds is no leak, though it is more than a run may leave behind."""
    plan = PlanBuilder()
    x = plan.input("x", [1])
    weights = plan.constant([1.0] * (12 * MIB))
    total = plan.compute("reduce_sum", [weights], [], axes=[0])
    plan.output("y", plan.compute("mul", [x, plan.broadcast(total, [1])], [1]))
    task = _task(folder, plan.build(), {Phase.PRE: "def pre(c): return {'x': [0.5]}"})
    assert (await model_vm.load(task)).ok
    (pid,) = model_vm.worker_pids()
    for _ in range(5):
        assert (await model_vm.execute(Execution("probe", "1"))).value == {"y": [0.5 * 12 * MIB]}
    assert model_vm.worker_pids() == [pid]


def _broadcasting(elements: int) -> Plan:
    """A plan that writes one number out `elements` times and adds it up."""
    plan = PlanBuilder()
    x = plan.input("x", [1])
    many = plan.compute("neg", [plan.view(x, [elements], [0])], [elements])
    plan.output("y", plan.compute("reduce_sum", [many], [], axes=[0]))
    return plan.build()


async def test_memory_is_bounded(model_vm: TaskVm, folder: Path) -> None:
    pre = {Phase.PRE: "def pre(c): return {'x': [1.0]}"}
    fits = _task(folder, _broadcasting(4 * MIB), pre, memory_bytes=64 * MIB)
    assert (await _once(model_vm, fits)).value == {"y": -4.0 * MIB}
    large = _task(folder, _broadcasting(32 * MIB), pre, memory_bytes=64 * MIB, version="2")
    outcome = await _once(model_vm, large)
    assert outcome.reason is Reason.MEMORY
    assert "more than 64 MiB" in outcome.message


async def test_a_model_that_runs_too_long_is_killed_and_the_next_run_is_made(
    model_vm: TaskVm, folder: Path
) -> None:
    plan = PlanBuilder()
    x = plan.input("x", [plan.dimension("n", 1, 4096)])
    row = plan.view(x, [2048, 16_384], [0, 0])
    value = plan.compute("reduce_sum", [row], [2048], axes=[1])
    for _ in range(400):
        value = plan.compute("reduce_sum", [plan.view(value, [2048, 16_384], [1, 0])], [2048], axes=[1])
    plan.output("y", value)
    pre = {Phase.PRE: "def pre(c): return {'x': [1.0]}"}
    slow = _task(folder, plan.build(), pre, wall_time_s=0.5)
    outcome = await _once(model_vm, slow)
    assert outcome.reason is Reason.TIMEOUT
    (folder / "model.plan").write_bytes(b"")
    quick = _task(folder, linear_plan([1.0, -1.0]), {Phase.PRE: PRE}, task="quick")
    assert (await _once(model_vm, quick)).ok


async def test_a_result_that_isnt_finite_is_no_json(model_vm: TaskVm, folder: Path) -> None:
    plan = PlanBuilder()
    plan.output("y", plan.compute("log", [plan.input("x", [1])], [1]))
    task = _task(folder, plan.build(), {Phase.PRE: "def pre(c): return {'x': [-1.0]}"})
    outcome = await _once(model_vm, task)
    assert outcome.reason is Reason.BAD_RESULT
    assert "the result of model.plan['y'][0] is nan" in outcome.message


async def test_numpy_and_its_libraries_count_for_no_task(model_vm: TaskVm, folder: Path) -> None:
    """Whether the worker has run a model before makes no difference to what a run may take."""
    plan = PlanBuilder()
    x = plan.input("x", [256, 256])
    product = plan.compute("matmul", [x, x], [256, 256])
    plan.output("y", plan.compute("reduce_sum", [product], [], axes=[0, 1]))
    pre = {
        Phase.PRE: """
        import numpy
        HELD = []
        def pre(c):
            HELD.append(bytearray(40 << 20))
            return {"x": numpy.ones((256, 256), numpy.float32)}
        """
    }
    task = _task(folder, plan.build(), pre, memory_bytes=64 * MIB)
    assert (await _once(model_vm, task)).value == {"y": 256.0**3}
