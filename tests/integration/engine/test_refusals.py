"""What the engine refuses: each with a status, a reason and a text that says what to do."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from isthmus.deployer.v1 import manifest_pb2
from isthmus.engine.v1 import engine_pb2
from libs.common.client import Channel, error_from_rpc
from libs.common.errors import Error, Exhausted, Forbidden, Invalid
from libs.runtime.plan import MAJOR
from services.deployer.testing import Running as Deployer
from services.engine import crew as crews
from services.engine.config import EngineConfig
from services.engine.testing_models import Model, mlp
from services.engine.testing_service import Running, running_engine


async def refusal(call: object) -> Error:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return error_from_rpc(refused.value)


@pytest.mark.parametrize("content", [b"not a model", mlp()[:200], b"\0" * 5000])
async def test_a_file_that_is_no_whole_model(deployer: Deployer, engine: Running, content: bytes) -> None:
    error = await refusal(engine.client().optimise(await deployer.client().upload(content)))
    assert isinstance(error, Invalid)
    assert "ONNX" in error.message


async def test_an_operator_that_there_is_not_is_named_with_its_node(
    deployer: Deployer, engine: Running
) -> None:
    m = Model("unusual")
    m.add("Gradiant", m.input("x", "batch", 2, 2), output="y")
    model = await deployer.client().upload(m.finish({"y": ("batch",)}))
    for call in (engine.client().optimise, engine.client().explain):
        error = await refusal(call(model))
        assert isinstance(error, Invalid)
        assert "Gradiant_1" in error.message
        assert "ONNX has no operator of this name" in error.message


async def test_a_model_of_no_bytes_or_of_too_many(engine: Running) -> None:
    for size in (0, 513 * 1024**2):
        ref = manifest_pb2.BlobRef(digest="sha256:" + "0" * 64, size_bytes=size)
        error = await refusal(engine.client().optimise(ref))
        assert isinstance(error, Invalid)
        assert error.metadata["field"] == "model.size_bytes"


@pytest.mark.parametrize(
    ("low", "high", "text"), [(5, 3, "is no range"), (1, 2**40, "is no range"), (1, 0, None)]
)
async def test_bounds_of_dimensions(
    deployer: Deployer, engine: Running, low: int, high: int, text: str | None
) -> None:
    model = await deployer.client().upload(mlp())
    bounds = [engine_pb2.DimensionBounds(name="batch", minimum=low, maximum=high)]
    if text is None:
        _, result = await engine.client().optimise(model, bounds)
        assert [(d.minimum, d.maximum) for d in result.explanation.dimensions] == [(1, 4096)]
        return
    error = await refusal(engine.client().optimise(model, bounds))
    assert isinstance(error, Invalid)
    assert "'batch'" in error.message
    assert text in error.message


async def test_a_dimension_that_the_model_does_not_have(deployer: Deployer, engine: Running) -> None:
    model = await deployer.client().upload(mlp())
    error = await refusal(
        engine.client().optimise(model, [engine_pb2.DimensionBounds(name="bacth", maximum=3)])
    )
    assert isinstance(error, Invalid)
    assert "did you mean 'batch'?" in error.message


async def test_a_plan_that_is_none_or_of_another_major_version(deployer: Deployer, engine: Running) -> None:
    _, result = await engine.client().optimise(await deployer.client().upload(mlp()))
    plan = await deployer.client().read(result.plan.digest)
    # Field 1, the major version, is the first one: it becomes 9.
    assert plan[:2] == bytes([8, MAJOR])
    for content, reason in ((b"\x08\x09" + plan[2:], "PLAN_VERSION"), (b"what is this", "BAD_PLAN")):
        ref = await deployer.client().upload(content)
        x = np.zeros((1, 8), np.float32)
        for call in (engine.client().infer(ref, x=x), engine.client().explain(plan=ref)):
            error = await refusal(call)
            assert isinstance(error, Invalid)
            assert error.reason == reason


async def test_inputs_that_do_not_fit_the_plan(deployer: Deployer, engine: Running) -> None:
    client = engine.client()
    _, result = await client.optimise(await deployer.client().upload(mlp()))
    for inputs, text in (
        ({"x": np.zeros((1, 9), np.float32)}, "x"),
        ({"x": np.zeros((1, 8), np.int32)}, "x"),
        ({"X": np.zeros((1, 8), np.float32)}, "given was 'X'"),
        ({}, "x"),
        ({"x": np.zeros((5000, 8), np.float32)}, "4096"),
    ):
        error = await refusal(client.infer(result.plan, **inputs))
        assert isinstance(error, Invalid)
        assert text in error.message
    cut = engine_pb2.InferTensor(name="x", type=11, shape=[1, 8], data=b"123")
    request = engine_pb2.InferRequest(parent="tenants/acme", plan=result.plan, inputs=[cut])
    error = await refusal(client.stub.Infer(request))
    assert isinstance(error, Invalid)
    assert "takes 32" in error.message


async def test_who_lacks_the_scope(deployer: Deployer, engine: Running) -> None:
    reader, model = engine.client("acme", "models:read"), await deployer.client().upload(mlp())
    error = await refusal(reader.optimise(model))
    assert isinstance(error, Forbidden)
    assert error.metadata["scope"] == "models:write"
    await reader.explain(model)


@pytest.fixture
async def small_engine(tmp_path: Path, to_deployer: Channel) -> AsyncIterator[Running]:
    config = EngineConfig(
        port=0,
        metrics_port=-1,
        data_dir=tmp_path / "e",
        identity_trust_dir=tmp_path,
        workers=1,
        worker_queue=0,
        worker_wall_s=30,
    )
    async with running_engine(tmp_path / "e", to_deployer, config=config) as running:
        yield running


def worker_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Put a script in the place of the worker's program."""
    script = tmp_path / "worker.py"
    script.write_text(f"import os, signal, sys, time\n{code}\n")
    monkeypatch.setattr(crews, "PROGRAM", (sys.executable, str(script)))


CONFINED = "from services.engine import worker; worker._confine(os.getppid(), 4 << 30, 1)"
"""A worker that may take one processor second."""


async def test_more_models_than_there_is_room_for(
    deployer: Deployer, small_engine: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await deployer.client().upload(mlp())
    stage = json.dumps({"stage": "read", "elapsed_s": 0.1, "summary": ""})
    worker_that(monkeypatch, tmp_path, f"print({stage!r}, flush=True); time.sleep(60)")
    request = engine_pb2.OptimizeRequest(parent="tenants/acme", model=model)
    first = small_engine.client().stub.Optimize(request)
    await first.read()
    error = await refusal(small_engine.client().explain(model))
    assert isinstance(error, Exhausted)
    assert error.reason == "ENGINE_BUSY"
    assert error.retry_after_s
    first.cancel()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "MODEL_CRASHES"),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "MODEL_TOO_SLOW"),
        (f"{CONFINED}\nwhile True: pass", "MODEL_TOO_SLOW"),
        ("sys.exit(3)", "WORKER_FAILED"),
        ("print('gibberish')", "WORKER_FAILED"),
        ("print('[]')", "WORKER_FAILED"),
        ('print(\'{"stage": "rest"}\')', "WORKER_FAILED"),
        ("print('{\"result\": {}}')", "WORKER_FAILED"),
        ("print('x' * (3 << 20))", "WORKER_FAILED"),
        ('print(\'{"error": "Invalid", "message": "no", "reason": "WHY"}\')', "WHY"),
        ('print(\'{"error": "SystemExit", "message": "no", "reason": "WHY"}\')', "WHY"),
    ],
)
async def test_a_worker_that_fails(
    deployer: Deployer,
    small_engine: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    reason: str,
) -> None:
    model = await deployer.client().upload(mlp())
    worker_that(monkeypatch, tmp_path, code)
    error = await refusal(small_engine.client().optimise(model))
    assert error.reason == reason
    monkeypatch.undo()
    # The engine goes on, and nothing of the failure was kept.
    _, result = await small_engine.client().optimise(model)
    assert not result.cached


async def test_a_model_that_takes_too_long(
    deployer: Deployer, to_deployer: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        port=0, metrics_port=-1, data_dir=tmp_path / "e", identity_trust_dir=tmp_path, worker_wall_s=1.0
    )
    model = await deployer.client().upload(mlp())
    worker_that(monkeypatch, tmp_path, "time.sleep(3600)")
    async with running_engine(tmp_path / "e", to_deployer, config=config) as engine:
        error = await refusal(engine.client().optimise(model))
    assert isinstance(error, Invalid)
    assert error.reason == "MODEL_TOO_SLOW"
    assert "at its start" in error.message


async def test_a_model_that_takes_too_much_memory(
    deployer: Deployer, to_deployer: Channel, tmp_path: Path
) -> None:
    m = Model("large")
    shape = m.constant(np.array([40_000, 40_000], np.int64))
    big = m.add("Expand", m.constant(np.float32(1)), shape)
    m.add("Add", m.input("x", 1), m.add("ReduceSum", m.add("Exp", big), keepdims=0), output="y")
    model = await deployer.client().upload(m.finish({"y": (1,)}))
    config = EngineConfig(
        port=0,
        metrics_port=-1,
        data_dir=tmp_path / "e",
        identity_trust_dir=tmp_path,
        worker_memory_bytes=2 * 1024**3,
    )
    async with running_engine(tmp_path / "e", to_deployer, config=config) as engine:
        error = await refusal(engine.client().optimise(model))
        assert isinstance(error, Invalid)
        assert error.reason in ("MODEL_TOO_LARGE", "PEER_FAILED", "MODEL_CRASHES"), error
        _, result = await engine.client().optimise(await deployer.client().upload(mlp()))
        assert result.comparison_count
