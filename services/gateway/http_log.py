"""What the HTTP server's own code logs."""

import logging
from typing import TYPE_CHECKING

from aiohttp.http_exceptions import HttpProcessingError

from libs.common.names import shown

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class HttpLog(_Adapter):
    """A logger that tells of bytes which are no HTTP/1 in one bounded line at INFO.

    They are answered with 400, and anybody can send them: gRPC to the wrong port, a port scan. It is nothing
    that the operator has to act on, so there is no error and no traceback.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: object) -> None:
        """Log as any logger does, but for clients' faults."""
        error = kwargs.get("exc_info")
        if isinstance(error, HttpProcessingError) and error.code < 500:
            # What was received may come with it, so what it says is bounded and quoted.
            said = shown(str(error.message))
            super().log(min(level, logging.INFO), "refused bytes that are no HTTP/1 request: %s", said)
            return
        super().log(level, msg, *args, **kwargs)  # type: ignore[arg-type]


def http_log() -> HttpLog:
    """Return the HTTP server's logger."""
    return HttpLog(logging.getLogger("isthmus.gateway.http"), {})
