import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from libs.common.client import create_channel, error_from_rpc
from libs.common.clock import SystemClock
from libs.common.config import ServiceConfig
from libs.common.echo import SERVICE, EchoService, EchoStub
from libs.common.errors import Precondition
from libs.common.health import Health
from libs.common.server import create_server
from libs.common.telemetry import Telemetry
from libs.common.testing import AlwaysUser, AnyMethod, running_server

SERVED = str(Path(__file__).with_name("served.py"))
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def text(value: str) -> StringValue:
    return StringValue(value=value)


class Served:
    """The process, its lines, and a channel to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.channel: grpc.aio.Channel

    async def line(self, start: str) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while raw := await self.process.stdout.readline():
                line = raw.decode().strip()
                if line.startswith(start):
                    return line
        raise AssertionError(f"the process ended without saying {start!r}")


@asynccontextmanager
async def served(*flags: str) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, SERVED, *flags, stdout=asyncio.subprocess.PIPE
    )
    one = Served(process)
    try:
        port = (await one.line("port ")).removeprefix("port ")
        async with create_channel(f"127.0.0.1:{port}") as channel:
            one.channel = channel
            yield one
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _result(call: Any) -> Any:
    return await call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_call_in_flight_is_answered_and_new_ones_are_not_taken(number: signal.Signals) -> None:
    async with served("--shutdown-grace-s", "30") as one:
        stub = EchoStub(one.channel)
        held = asyncio.ensure_future(_result(stub.echo(text("slow1"))))
        await one.line("call slow1")
        one.process.send_signal(number)
        assert (await held).value == "slow1"
        await one.line("closing")
        await one.line("stopped")
        assert await one.process.wait() == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.echo(text("late"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_every_call_that_came_before_the_signal_is_answered(tmp_path: Path) -> None:
    async with served("--shutdown-grace-s", "60") as one:
        stub = EchoStub(one.channel)
        blocking = asyncio.ensure_future(_result(stub.echo(text(f"block {tmp_path / 'go'}"))))
        await one.line("call block")
        plain = [asyncio.ensure_future(_result(stub.echo(text(str(n))))) for n in range(20)]
        joins = [stub.join() for _ in range(20)]
        for join in joins:
            await join.write(text("x"))  # is on its way once this returns, and so is whatever was sent before
            await join.done_writing()
        one.process.terminate()
        (tmp_path / "go").touch()
        assert [answer.value for answer in await asyncio.gather(*plain)] == [str(n) for n in range(20)]
        assert [(await join).value for join in joins] == ["x"] * 20
        await blocking
        await one.line("closing")
        assert await one.process.wait() == 0


async def test_calls_that_keep_coming_do_not_hold_up_the_shutdown() -> None:
    async with served("--shutdown-grace-s", "600") as one:
        stub = EchoStub(one.channel)

        async def keep_calling() -> grpc.StatusCode:
            while True:
                try:
                    await stub.echo(text("again"))
                except grpc.aio.AioRpcError as error:
                    return error.code()

        calling = [asyncio.ensure_future(keep_calling()) for _ in range(4)]
        await one.line("call again")
        one.process.terminate()
        # Refused or cancelled; grpc.aio may leave one that arrives in the very moment to its own deadline.
        assert grpc.StatusCode.OK not in await asyncio.gather(*calling)
        await one.line("closing")
        assert await one.process.wait() == 0


async def test_health_says_not_serving_before_the_server_goes() -> None:
    async with served("--shutdown-grace-s", "30") as one:
        health = health_pb2_grpc.HealthStub(one.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        one.process.terminate()
        assert (await watch.read()).status == NOT_SERVING
        assert await one.process.wait() == 0


async def test_a_held_stream_does_not_hold_up_the_shutdown_and_is_told_to_come_back() -> None:
    async with served("--shutdown-grace-s", "600") as one:
        call = EchoStub(one.channel).count(text("tick"))
        await call.read()
        one.process.terminate()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _until_it_ends(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error_from_rpc(caught.value).reason == "SHUTTING_DOWN"
        assert await one.process.wait() == 0


async def _until_it_ends(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_calls_beyond_the_grace_are_ended_and_the_rest_of_the_shutdown_still_runs() -> None:
    async with served("--shutdown-grace-s", "0.1") as one:
        held = asyncio.ensure_future(_result(EchoStub(one.channel).echo(text("slow600"), timeout=600)))
        await one.line("call slow600")
        one.process.terminate()
        with pytest.raises(grpc.aio.AioRpcError):
            await held
        await one.line("closing")
        assert await one.process.wait() == 0


async def test_a_second_signal_ends_calls_at_once() -> None:
    async with served("--shutdown-grace-s", "600") as one:
        held = asyncio.ensure_future(_result(EchoStub(one.channel).echo(text("slow600"), timeout=600)))
        await one.line("call slow600")
        health = health_pb2_grpc.HealthStub(one.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        one.process.terminate()
        assert (await watch.read()).status == NOT_SERVING
        one.process.terminate()
        with pytest.raises(grpc.aio.AioRpcError):
            await held
        await one.line("closing")
        assert await one.process.wait() == 0


async def test_health_answers_anybody_overall_and_by_name() -> None:
    async with running_server(EchoService(), identity=None) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await channel.server.health.set(SERVICE, False)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == NOT_SERVING


async def test_a_service_may_answer_health_itself() -> None:
    class Own(Health, health_pb2_grpc.HealthServicer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(())
            self.calls = [""]

        def add_to(self, server: Any) -> None:
            health_pb2_grpc.add_HealthServicer_to_server(self, server)

        async def serving(self) -> None:
            self.calls.append("serving")

        async def not_serving(self) -> None:
            self.calls.append("not serving")

        async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.UNKNOWN)

    own = Own()
    async with running_server(own, EchoService(), identity=None) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.UNKNOWN
    assert own.calls == ["", "serving", "not serving"]


async def test_reflection_lists_what_is_served_to_anybody() -> None:
    async with running_server(EchoService(), identity=None) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
        health_file = reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health")
        await call.write(health_file)
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_a_taken_port_is_said_to_be_taken() -> None:
    async with running_server(EchoService()) as channel:
        config = ServiceConfig(port=channel.server.port)
        with pytest.raises(Precondition, match=f"127.0.0.1:{channel.server.port}") as caught:
            create_server(
                config,
                [],
                access=AnyMethod(),
                verifier=AlwaysUser(),
                telemetry=Telemetry("x"),
                clock=SystemClock(),
            )
        assert caught.value.reason == "PORT_TAKEN"
