"""Large messages on their way through: tensors pass, the rest is refused as it should be."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.common.status import error_from_rpc
from libs.common.testing import eventually
from services.gateway.domain.routes import Method
from services.gateway.testing import (
    BOTH,
    UNARY,
    UP,
    FakeUpstream,
    bearer,
    gateway_config,
    make_key,
    running_gateway,
    serving,
    store_with,
)

KEY, TEXT = make_key()
ME = bearer(TEXT)
MIB = 1024 * 1024
INFER = Method("/inference.GRPCInferenceService/ModelInfer", False, False)
PUT = Method("/isthmus.serving.v1.ModelService/PutModel", False, False)
TENSOR = np.random.default_rng(0).bytes(20 * MIB)


def config(folder: Path, port: int, **settings: Any) -> Any:
    names = ("serving", "deployer")
    return gateway_config(folder, upstreams=tuple(f"{name}=127.0.0.1:{port}" for name in names), **settings)


async def refusal(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def echo() -> FakeUpstream:
    upstream = FakeUpstream()

    async def answer(request: bytes, context: Any) -> bytes:
        return request

    for method in (INFER, PUT, UNARY):
        upstream.on(method, answer)
    return upstream


async def test_tensors_pass_both_ways(tmp_path: Path) -> None:
    async with (
        serving(echo()) as port,
        running_gateway(config(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        for method in (INFER, PUT):
            assert await channel.unary_unary(method.path)(TENSOR, metadata=ME) == TENSOR


async def test_what_is_beyond_the_limit_is_refused_with_both_sizes(tmp_path: Path) -> None:
    async with (
        serving(echo()) as port,
        running_gateway(config(tmp_path, port, max_tensor_bytes=8 * MIB), await store_with(KEY)) as (
            _,
            channel,
        ),
    ):
        call = channel.unary_unary(INFER.path)
        error = await refusal(call(TENSOR, metadata=ME))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(20 * MIB) in error.details()
        assert str(8 * MIB) in error.details()
        assert await call(b"small", metadata=ME) == b"small"


async def test_answers_beyond_the_limit_are_refused_too(tmp_path: Path) -> None:
    upstream = FakeUpstream()

    async def answer(request: bytes, context: Any) -> bytes:
        return TENSOR

    upstream.on(INFER, answer)
    async with (
        serving(upstream) as port,
        running_gateway(config(tmp_path, port, max_tensor_bytes=8 * MIB), await store_with(KEY)) as (
            _,
            channel,
        ),
    ):
        error = await refusal(channel.unary_unary(INFER.path)(b"", metadata=ME))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        said = error_from_rpc(error)
        assert said.reason in ("ANSWER_TOO_LARGE", "MESSAGE_TOO_LARGE")
        assert "8 MiB" in said.message


async def test_only_serving_is_sent_tensors(tmp_path: Path) -> None:
    async with (
        serving(echo()) as port,
        running_gateway(config(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        call = channel.unary_unary(UNARY.path)
        error = error_from_rpc(await refusal(call(bytes(4 * MIB + 1), metadata=ME)))
        assert isinstance(error, Invalid)
        assert error.reason == "MESSAGE_TOO_LARGE"
        assert f"the request has {4 * MIB + 1} bytes, and {4 * MIB} are allowed" in error.message
        assert await call(bytes(4 * MIB), metadata=ME) == bytes(4 * MIB)


async def test_requests_in_hand_are_bounded_together(tmp_path: Path) -> None:
    upstream, gate, came = FakeUpstream(), asyncio.Event(), []

    async def answer(request: bytes, context: Any) -> bytes:
        came.append(len(request))
        await gate.wait()
        return b"done"

    upstream.on(INFER, answer)
    async with (
        serving(upstream) as port,
        running_gateway(config(tmp_path, port, max_held_bytes=10 * MIB), await store_with(KEY)) as (
            made,
            channel,
        ),
    ):
        call = channel.unary_unary(INFER.path)

        def held() -> float | None:
            return made.server.telemetry.registry.get_sample_value("isthmus_gateway_held_bytes")

        # One alone passes although it is larger than the bound.
        first = asyncio.ensure_future(call(bytes(12 * MIB), metadata=ME))
        await eventually(lambda: len(came) == 1)
        error = error_from_rpc(await refusal(call(bytes(MIB), metadata=ME)))
        assert isinstance(error, Exhausted)
        assert (error.reason, error.retry_after_s) == ("TOO_MANY_BYTES", 0.5)
        small = asyncio.ensure_future(call(bytes(1024), metadata=ME))
        await eventually(lambda: len(came) == 2)
        # What was given up gives its bytes back, as does what ended.
        first.cancel()
        await eventually(lambda: held() == 0)
        second = asyncio.ensure_future(call(bytes(9 * MIB), metadata=ME))
        await eventually(lambda: held() == 9 * MIB)
        gate.set()
        assert [await small, await second] == [b"done", b"done"]
        assert held() == 0


async def test_a_tenant_whose_requests_are_stalled_leaves_bytes_to_others(tmp_path: Path) -> None:
    upstream, gate, came = FakeUpstream(), asyncio.Event(), []

    async def answer(request: bytes, context: Any) -> bytes:
        came.append(len(request))
        if len(request) == MIB:
            await gate.wait()
        return b"done"

    upstream.on(INFER, answer)
    key, text = make_key("other", 1)
    async with (
        serving(upstream) as port,
        running_gateway(config(tmp_path, port, max_held_bytes=8 * MIB), await store_with(KEY, key)) as (
            _,
            channel,
        ),
    ):
        call = channel.unary_unary(INFER.path)
        stalled = [asyncio.ensure_future(call(bytes(MIB), metadata=ME)) for _ in range(4)]
        await eventually(lambda: len(came) == 4)
        error = error_from_rpc(await refusal(call(bytes(MIB), metadata=ME)))
        assert error.reason == "TOO_MANY_BYTES"
        assert f"your tenant's requests in hand have {4 * MIB} bytes; {MIB} more" in error.message
        assert await call(bytes(2 * MIB), metadata=bearer(text)) == b"done"
        gate.set()
        assert await asyncio.gather(*stalled) == [b"done"] * 4


async def test_messages_of_streams_are_bounded_as_well(tmp_path: Path) -> None:
    upstream, gate, came = FakeUpstream(), asyncio.Event(), []

    async def each(requests: Any, context: Any) -> Any:
        async for request in requests:
            came.append(len(request))
            yield b"read"

    async def one(requests: Any, context: Any) -> bytes:
        async for request in requests:
            came.append(len(request))
        return b"read"

    async def wait(request: bytes, context: Any) -> bytes:
        came.append(len(request))
        await gate.wait()
        return b"done"

    upstream.on(BOTH, each)
    upstream.on(UP, one)
    upstream.on(INFER, wait)
    async with (
        serving(upstream) as port,
        running_gateway(config(tmp_path, port, max_held_bytes=8 * MIB), await store_with(KEY)) as (
            made,
            channel,
        ),
    ):
        call = channel.stream_stream(BOTH.path)(metadata=ME)
        # One after the other, and each is let go once it is on its way: more than may be in hand together.
        for _ in range(5):
            await call.write(bytes(3 * MIB))
            assert await call.read() == b"read"
        await eventually(
            lambda: made.server.telemetry.registry.get_sample_value("isthmus_gateway_held_bytes") == 0
        )
        # What another call holds counts.
        stalled = asyncio.ensure_future(channel.unary_unary(INFER.path)(bytes(4 * MIB), metadata=ME))
        await eventually(lambda: came[-1] == 4 * MIB)
        await call.write(bytes(MIB))
        error = error_from_rpc(await refusal(call.read()))
        assert (error.reason, error.retry_after_s) == ("TOO_MANY_BYTES", 0.5)
        gate.set()
        await stalled
        # And no stream has tensors.
        came.clear()
        both = channel.stream_stream(BOTH.path)(metadata=ME)
        await both.write(bytes(4 * MIB + 1))
        assert error_from_rpc(await refusal(both.read())).reason == "MESSAGE_TOO_LARGE"
        up = channel.stream_unary(UP.path)(metadata=ME)
        await up.write(bytes(5 * MIB))
        assert error_from_rpc(await refusal(up)).reason == "MESSAGE_TOO_LARGE"
        assert came == []
        assert made.server.telemetry.registry.get_sample_value("isthmus_gateway_held_bytes") == 0
