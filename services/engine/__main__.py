"""`python -m services.engine`: see `--help`."""

import os
import sys

# Inferences run beside one another; each in one thread. It must be set before numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from libs.common.process import run_service
from services.engine.app import NAME, run
from services.engine.config import EngineConfig

if __name__ == "__main__":
    sys.exit(run_service(NAME, EngineConfig, run, sys.argv[1:], os.environ))
