"""A real process that serves the echo service until it is told to stop; what it does goes to stdout."""

import asyncio
import sys
import time
from pathlib import Path

from libs.common.clock import SystemClock
from libs.common.config import ServiceConfig, load
from libs.common.echo import EchoService
from libs.common.server import create_server, serve
from libs.common.telemetry import Telemetry
from libs.common.testing import AlwaysUser, AnyMethod


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main() -> None:
    config = load(ServiceConfig, "served", sys.argv[1:], {})

    async def act(value: str) -> str:
        say(f"call {value}")
        if value.startswith("slow"):
            await asyncio.sleep(float(value.removeprefix("slow")))
        elif value == "tick":
            await asyncio.sleep(0.05)
        elif value.startswith("block "):
            # Nothing else runs meanwhile: no call is taken up, no signal is heard.
            while not Path(value.removeprefix("block ")).exists():  # noqa: ASYNC240
                time.sleep(0.01)  # noqa: ASYNC251
        return value

    async def closing() -> None:
        say("closing")

    server = create_server(
        config,
        [EchoService(act)],
        access=AnyMethod(),
        verifier=AlwaysUser(),
        telemetry=Telemetry("served"),
        clock=SystemClock(),
    )
    await serve(server, config, on_shutdown=closing, on_ready=lambda: say(f"port {server.port}"))
    say("stopped")


asyncio.run(main())
