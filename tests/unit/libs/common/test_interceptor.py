import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from libs.common.interceptor import LayeredInterceptor
from libs.common.layers import Behaviour, Ended, ErrorsLayer, Method, metadata_of
from libs.common.telemetry import MethodName


class Named:
    """A layer that notes when it is built and when a call passes it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        self._log.append(f"built {self._name}")

        async def call(request: Any, context: Any) -> Any:
            self._log.append(f"into {self._name}")
            try:
                return await inner(request, context)
            finally:
                self._log.append(f"out of {self._name}")

        return call


def answering(handler: Any) -> Callable[[Any], Awaitable[Any]]:
    async def continuation(details: Any) -> Any:
        return handler

    return continuation


def asked(method: str) -> Any:
    return SimpleNamespace(method=method, invocation_metadata=())


async def echo(request: Any, context: Any) -> Any:
    return request


async def test_layers_are_passed_in_order_and_built_once_for_a_method() -> None:
    log: list[str] = []
    interceptor = LayeredInterceptor([Named("a", log), Named("b", log)], [Named("c", log)], lambda: ())
    handler: Any = grpc.unary_unary_rpc_method_handler(echo)
    for _ in range(3):
        wrapped = await interceptor.intercept_service(answering(handler), asked("/x.Y/Z"))
    assert sorted(log) == ["built a", "built b", "built c"]
    log.clear()
    assert await wrapped.unary_unary("hallo", None) == "hallo"
    assert log == ["into a", "into b", "into c", "out of c", "out of b", "out of a"]


async def test_another_handler_for_the_same_method_is_wrapped_anew() -> None:
    async def shout(request: Any, context: Any) -> Any:
        return request.upper()

    interceptor = LayeredInterceptor([], [], lambda: ())
    answers = []
    for behaviour in (echo, shout, echo):
        handler: Any = grpc.unary_unary_rpc_method_handler(behaviour)
        wrapped = await interceptor.intercept_service(answering(handler), asked("/x.Y/Z"))
        answers.append(await wrapped.unary_unary("hallo", None))
    assert answers == ["hallo", "HALLO", "hallo"]


async def test_a_handler_that_is_no_coroutine_works_as_well() -> None:
    interceptor = LayeredInterceptor([], [], lambda: ())
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    wrapped = await interceptor.intercept_service(answering(handler), asked("/x.Y/Z"))
    assert await wrapped.unary_unary("hallo", None) == "hallo"


async def test_calls_to_unknown_methods_pass_the_outer_layers_only() -> None:
    log: list[str] = []
    interceptor = LayeredInterceptor([Named("outer", log)], [Named("inner", log)], lambda: ("/x.Y/Get",))
    wrapped = await interceptor.intercept_service(answering(None), asked("/x.Y/Gett"))
    with pytest.raises(Ended) as ended:
        await wrapped.stream_stream(None, None)
    assert ended.value.code is grpc.StatusCode.UNIMPLEMENTED
    assert ended.value.text == "'/x.Y/Gett': no such method here; did you mean '/x.Y/Get'?"
    assert log == ["built outer", "into outer", "out of outer"]


async def test_writing_to_a_caller_who_is_gone_is_a_cancellation_and_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def gone(request: Any, context: Any) -> Any:
        raise grpc.aio.UsageError("RPC already finished.")

    method = Method(MethodName.parse("/x.Y/Z"), request_streaming=False, response_streaming=True)
    call = ErrorsLayer("d").wrap(method, gone)
    with pytest.raises(asyncio.CancelledError):
        await call(None, SimpleNamespace())  # type: ignore[arg-type]
    assert caplog.records == []


async def test_layers_see_the_metadata_of_their_own_call() -> None:
    seen: list[Any] = []

    class Looking:
        def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
            async def call(request: Any, context: Any) -> Any:
                seen.append(metadata_of(context))
                return await inner(request, context)

            return call

    interceptor = LayeredInterceptor([Looking()], [], lambda: ())
    handler: Any = grpc.unary_unary_rpc_method_handler(echo)

    async def serve(number: int) -> None:
        details = SimpleNamespace(method="/x.Y/Z", invocation_metadata=(("number", str(number)),))
        wrapped = await interceptor.intercept_service(answering(handler), details)
        await asyncio.sleep(0)
        await wrapped.unary_unary("hallo", None)

    await asyncio.gather(*(serve(number) for number in range(3)))
    assert seen == [(("number", str(number)),) for number in range(3)]
