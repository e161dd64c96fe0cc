"""Runs a device agent, `python -m services.device_agent --help`, or tries a task, `… try --help`."""

import os
import sys
from collections.abc import Mapping, Sequence


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run what is asked for; return the process's exit status."""
    if argv[:1] == ["try"]:
        from services.device_agent import trying

        return trying.main(argv[1:], environ)
    from services.device_agent import process

    return process.main(argv, environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
