"""What `isthmus` starts with: a second's worth of imports, which Ctrl-C ends without a traceback.

Nothing but the standard library may be imported at the top of this file.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED = 130


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Let Ctrl-C end the process at once, with 130, inside the block.

    For imports: nothing is under way then that would have to be undone, and an exception out of a compiled
    module that is half imported may become anything.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    except ValueError:  # not the main thread, which is the one that Ctrl-C reaches
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> int:
    """Run the command and return its exit code."""
    try:
        with ends_quietly():
            from libs.cli.main import main as run
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
