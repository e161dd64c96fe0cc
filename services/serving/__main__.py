"""`python -m services.serving`: see `--help`."""

import os
import sys

# Executions run beside one another, each in the threads that its model is given; a plan in one. To be set
# before numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from libs.common.process import run_service
from services.serving.app import NAME, run
from services.serving.config import ServingServiceConfig

if __name__ == "__main__":
    sys.exit(run_service(NAME, ServingServiceConfig, run, sys.argv[1:], os.environ))
