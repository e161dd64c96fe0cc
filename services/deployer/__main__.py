"""`python -m services.deployer`: see `--help`."""

import os
import sys

from libs.common.process import run_service
from services.deployer.app import NAME, run
from services.deployer.config import DeployerConfig

if __name__ == "__main__":
    sys.exit(run_service(NAME, DeployerConfig, run, sys.argv[1:], os.environ))
