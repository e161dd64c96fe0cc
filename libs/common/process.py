"""A service as a process: flags, logs, exit status; the same for every service, so that it is learnt once."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from libs.common.config import ConfigError, HelpRequested, load, redacted
from libs.common.errors import Error
from libs.common.logs import setup_logging


class Configuration(Protocol):
    """The settings of a process, as a dataclass; `libs.common.config.ServiceConfig` for whatever serves."""

    @property
    def log_level(self) -> str:
        """The least level to log."""
        ...


C = TypeVar("C", bound=Configuration)

EXIT_FAILED = 1
"""It couldn't start: a port or a file is taken, missing or can't be used. The log's last line says which."""
EXIT_CONFIG = 2
"""The flags or variables are wrong; every fault was told."""

_log = logging.getLogger("isthmus.process")


def run_service(
    name: str,
    config_class: type[C],
    run: Callable[[C], Coroutine[Any, Any, None]],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """Run a service until it has been told to stop; return the process's exit status.

    Args:
        name: the service's, for its variables (`ISTHMUS_<NAME>_…`) and its logs.
        config_class: what it is configured by; logged at the start without its secrets.
        run: serves until SIGTERM or SIGINT; raises Error or OSError when it can't start.
        argv: the arguments after the program's name.
        environ: the environment.
    """
    try:
        config = load(config_class, name, argv, environ)
    except HelpRequested as text:
        sys.stdout.write(f"{text}\n")
        return 0
    except ConfigError as faults:
        sys.stderr.write(f"{name}: {faults}\n")
        return EXIT_CONFIG
    setup_logging(name, config.log_level)
    _log.info("starting", extra={"config": redacted(config)})
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(run(config))
    except Error as error:
        _log.error("can't start: %s", error.message, extra={"reason": error.reason})
        return EXIT_FAILED
    except OSError as error:
        _log.error("can't start: %s", error)
        return EXIT_FAILED
    return 0
