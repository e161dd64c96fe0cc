"""`python -m services.deployer`: see `--help`."""

import asyncio
import os
import sys

from libs.common.config import HelpRequested, load
from libs.common.errors import Error
from libs.common.logs import setup_logging
from services.deployer.app import NAME, run
from services.deployer.config import DeployerConfig


def main() -> int:
    try:
        config = load(DeployerConfig, NAME, sys.argv[1:], os.environ)
    except HelpRequested as help_text:
        print(help_text)
        return 0
    except Error as error:
        print(f"deployer: {error}", file=sys.stderr)
        return 2
    setup_logging(NAME, config.log_level)
    try:
        asyncio.run(run(config))
    except Error as error:
        print(f"deployer: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
