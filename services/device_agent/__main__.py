"""Runs a device agent, or what else its code does.

python -m services.device_agent --help                    the agent
python -m services.device_agent --role simulator --help   the simulator, in the cloud
python -m services.device_agent try --help                a task over recorded events, on this machine
"""

import os
import sys
from collections.abc import Mapping, Sequence

_ROLES = ("agent", "simulator")


def _take_role(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the role and the arguments without it."""
    role, rest, words = "agent", [], iter(argv)
    for word in words:
        if word == "--role":
            role = next(words, "")
        elif word.startswith("--role="):
            role = word.partition("=")[2]
        else:
            rest.append(word)
    return role, rest


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run what is asked for; return the process's exit status."""
    if argv[:1] == ["try"]:
        from services.device_agent import trying

        return trying.main(argv[1:], environ)
    if argv[:1] == ["simulation"]:  # started by the simulator alone: its pid, a folder, seconds, what holds
        from services.device_agent.simulator import leash

        leash.hold(int(argv[1]))
        from services.device_agent.simulator import child

        return child.main(argv[2], float(argv[3]), argv[4:])
    role, rest = _take_role(argv)
    if role == "simulator":
        from libs.common.process import run_service
        from services.device_agent.simulator.app import NAME, run
        from services.device_agent.simulator.config import SimulatorConfig

        return run_service(NAME, SimulatorConfig, run, rest, environ)
    if role != "agent":
        print(f"--role: {role!r} is none of {', '.join(_ROLES)}", file=sys.stderr)
        return 2
    from services.device_agent import process

    return process.main(rest, environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
