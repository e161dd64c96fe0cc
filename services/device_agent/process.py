"""The agent as a process: configuration, logs, signals, exit codes."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from libs.common.config import ConfigError, HelpRequested, load, redacted
from libs.common.errors import Error
from libs.common.logs import setup_logging
from libs.common.telemetry import Telemetry, setup_tracing
from services.device_agent import AGENT_VERSION
from services.device_agent.app import Agent
from services.device_agent.config import AgentConfig
from services.device_agent.errors import EXIT_CONFIG, EXIT_FAULT, exit_code

_log = logging.getLogger("isthmus.agent")


async def serve(agent: Agent) -> None:
    """Run an agent until SIGTERM or SIGINT, then end it in order.

    Raises:
        Error: what ended it.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def start_and_run() -> None:
        await agent.start()
        await agent.run()

    try:
        running = asyncio.create_task(start_and_run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        await agent.close()
        _log.info("stopped")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the agent as a process; return its exit code (see `errors`)."""
    try:
        config = load(AgentConfig, "device_agent", argv, environ)
    except HelpRequested as help_:
        print(help_)  # noqa: T201
        return 0
    except ConfigError as error:
        print(f"device agent: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_CONFIG
    setup_logging("device_agent", config.log_level)
    # Events are people's: nothing that this process writes is for other users of the machine.
    os.umask(0o077)
    _log.info("starting", extra={"config": redacted(config), "version": AGENT_VERSION})
    try:
        telemetry = Telemetry("device_agent", None, setup_tracing("device_agent", config.otlp_endpoint))
        asyncio.run(serve(Agent(config, telemetry=telemetry)))
    except Error as error:
        _log.error("%s", error.message, extra={"reason": error.reason})
        return exit_code(error)
    except OSError as error:
        _log.error("%s", error)
        return EXIT_CONFIG
    except Exception:
        _log.exception("ended by a fault of its own")
        return EXIT_FAULT
    return 0
