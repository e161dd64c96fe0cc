"""Runs a device agent: `python -m services.device_agent --help`."""

import os
import sys

from services.device_agent.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
