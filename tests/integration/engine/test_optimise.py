"""From an ONNX file among a tenant's blobs to a plan that runs, over real gRPC and a real deployer."""

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest

from isthmus.engine.v1 import engine_pb2
from libs.common.client import Channel
from libs.runtime.codec import decode
from libs.runtime.program import Program
from services.deployer.testing import Running as Deployer
from services.engine.config import EngineConfig
from services.engine.domain.model import STAGES
from services.engine.peers import Peer
from services.engine.testing_models import MODELS, Model, beside, mlp
from services.engine.testing_service import Running, running_engine


@pytest.mark.parametrize("name", MODELS)
async def test_a_model_becomes_a_plan_that_agrees_with_onnx_runtime(
    deployer: Deployer, engine: Running, name: str
) -> None:
    content = MODELS[name]()
    stages, result = await engine.client().optimise(await deployer.client().upload(content))
    assert [stage.name for stage in stages] == list(STAGES)
    assert result.comparison_count >= 4
    assert 0 <= result.max_error < 1e-4
    assert not result.cached
    plan = decode(await deployer.client().read(result.plan.digest))
    program, peer, randomness = Program(plan), Peer(content), np.random.default_rng(3)
    for batch in (1, 4, 9):
        sizes = {"batch": batch, "length": 5}
        feed = {}
        for spec in program.inputs:
            shape = [size if isinstance(size, int) else sizes[size] for size in spec.shape]
            drawn = randomness.integers(0, 9, shape) if spec.dtype == np.int64 else randomness.random(shape)
            feed[spec.name] = drawn.astype(spec.dtype)
        expected = peer.run(feed)
        answers = [program.run(feed), await engine.client().infer(result.plan, **feed)]
        for answer in answers:
            assert answer.keys() == expected.keys()
            for output, array in expected.items():
                np.testing.assert_allclose(answer[output], array, rtol=1e-4, atol=1e-5)


async def test_a_model_whose_data_is_in_other_files(deployer: Deployer, engine: Running) -> None:
    content, files = beside()
    model = await deployer.client().upload(content)
    with pytest.raises(grpc.aio.AioRpcError, match=r"'weights\.bin', which did not come with the model"):
        await engine.client().optimise(model)
    refs = {path: await deployer.client().upload(data) for path, data in files.items()}
    stages, result = await engine.client().optimise(model, external_data=refs)
    assert [stage.name for stage in stages] == list(STAGES)
    assert 0 <= result.max_error < 1e-4
    assert result.explanation.model_digest == model.digest
    _, again = await engine.client().optimise(model, external_data=refs)
    assert again.cached
    changed = await deployer.client().upload(bytes(len(files["weights.bin"])))
    _, other = await engine.client().optimise(model, external_data={**refs, "weights.bin": changed})
    assert not other.cached
    assert other.plan.digest != result.plan.digest


async def test_the_same_model_comes_from_the_cache_also_after_a_restart(
    deployer: Deployer, to_deployer: Channel, tmp_path: Path
) -> None:
    model = await deployer.client().upload(mlp())
    async with running_engine(tmp_path / "e", to_deployer) as engine:
        _, first = await engine.client().optimise(model)
        stages, second = await engine.client().optimise(model)
        assert (second.cached, stages) == (True, [])
        bounds = [engine_pb2.DimensionBounds(name="batch", minimum=2, maximum=2)]
        _, fixed = await engine.client().optimise(model, bounds)
        assert not fixed.cached
        assert not fixed.explanation.dimensions
    async with running_engine(tmp_path / "e", to_deployer) as engine:
        _, third = await engine.client().optimise(model)
    assert third.cached
    assert first.plan == second.plan == third.plan != fixed.plan
    assert first.explanation == third.explanation
    assert first.max_error == third.max_error


async def test_a_dry_run_leaves_no_blob(deployer: Deployer, engine: Running) -> None:
    model = await deployer.client().upload(mlp())
    _, result = await engine.client().optimise(model, validate_only=True)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await deployer.client().read(result.plan.digest)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    _, kept = await engine.client().optimise(model)
    assert kept.plan == result.plan
    await deployer.client().read(kept.plan.digest)


async def test_many_who_want_the_same_plan_share_the_work(deployer: Deployer, engine: Running) -> None:
    model = await deployer.client().upload(mlp())
    results = await asyncio.gather(*(engine.client().optimise(model) for _ in range(6)))
    assert [result.cached for _, result in results].count(False) == 1
    assert len({result.plan.digest for _, result in results}) == 1
    assert engine.metrics.get_sample_value("isthmus_engine_stage_seconds_count", {"stage": "verify"}) == 1


async def test_a_model_of_another_tenant_is_not_there(deployer: Deployer, engine: Running) -> None:
    model = await deployer.client().upload(mlp())
    _, result = await engine.client().optimise(model)
    other = engine.client("other")
    for call in (other.optimise(model), other.explain(model), other.explain(plan=result.plan)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await other.infer(result.plan, x=np.zeros((1, 8), np.float32))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_model_and_its_plan_explain_alike(deployer: Deployer, engine: Running) -> None:
    model = await deployer.client().upload(mlp())
    by_model = await engine.client().explain(model)
    _, result = await engine.client().optimise(model)
    assert result.explanation == by_model
    assert {each.operator: each.count for each in by_model.operators_before} == {
        "Gemm": 2,
        "Relu": 1,
        "Softmax": 1,
    }
    assert by_model.raster_count_before > by_model.raster_count_after == 0
    assert [list(each.shape) for each in by_model.inputs] == [["batch", "8"]]
    by_plan = await engine.client().explain(plan=result.plan)
    assert by_plan.steps == by_model.steps
    assert not by_plan.operators_before
    assert by_plan.after == by_model.after
    assert by_model.before.moved_bytes > by_model.after.moved_bytes
    assert [each.operator for each in by_model.nodes] == ["Gemm", "Relu", "Gemm", "Softmax"]
    assert all(each.steps for each in by_model.nodes)


async def test_figures_are_told_at_the_sizes_that_are_asked_for(deployer: Deployer, engine: Running) -> None:
    model = await deployer.client().upload(mlp())
    one, eight = [await engine.client().explain(model, sizes={"batch": batch}) for batch in (1, 8)]
    assert (one.sizes["batch"], eight.sizes["batch"]) == (1, 8)
    for first, second in ((one.before, eight.before), (one.after, eight.after)):
        assert second.calculations == 8 * first.calculations
        assert second.peak_bytes > first.peak_bytes
    with pytest.raises(grpc.aio.AioRpcError, match="'bach': the dimensions are batch; did you mean 'batch'"):
        await engine.client().explain(model, sizes={"bach": 8})


async def test_a_call_that_is_cancelled_ends_its_worker(
    deployer: Deployer, to_deployer: Channel, tmp_path: Path
) -> None:
    config = EngineConfig(
        port=0, metrics_port=-1, data_dir=tmp_path / "e", identity_trust_dir=tmp_path, workers=1
    )
    m = Model("slow")
    x = m.input("x", "batch", 64)
    for _ in range(300):
        x = m.add("Softmax", m.add("MatMul", x, m.weight(64, 64)), axis=-1)
    m.add("Relu", x, output="y")
    slow = await deployer.client().upload(m.finish({"y": ("batch", 64)}))
    quick = await deployer.client().upload(mlp())
    async with running_engine(tmp_path / "e", to_deployer, config=config) as engine:
        request = engine_pb2.OptimizeRequest(parent="tenants/acme", model=slow)
        call = engine.client().stub.Optimize(request)
        first = await call.read()
        assert first.stage.name == "read"
        call.cancel()
        # The only worker is free again: the next one isn't behind what nobody waits for.
        _, result = await engine.client().optimise(quick)
        assert not result.cached
        assert engine.engine.crew.busy == 0
        assert list((tmp_path / "e" / "work").iterdir()) == []
