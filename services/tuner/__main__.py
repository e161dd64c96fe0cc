"""`python -m services.tuner`: see `--help`."""

import os
import sys

from libs.common.process import run_service
from services.tuner.app import NAME, run
from services.tuner.config import TunerConfig

if __name__ == "__main__":
    sys.exit(run_service(NAME, TunerConfig, run, sys.argv[1:], os.environ))
