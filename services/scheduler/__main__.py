"""`python -m services.scheduler`: the scheduler, or a node's runner (`--role runner`)."""

import sys
from collections.abc import Sequence

_ROLES = ("scheduler", "runner")


def _take_role(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the role and the arguments without it."""
    role, rest, words = "scheduler", [], iter(arguments)
    for word in words:
        if word == "--role":
            role = next(words, "")
        elif word.startswith("--role="):
            role = word.partition("=")[2]
        else:
            rest.append(word)
    return role, rest


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name; return the exit status."""
    role, rest = _take_role(arguments)
    if role == "runner":
        from services.scheduler.runner.app import main as runner

        return runner(rest)
    if role != "scheduler":
        print(f"--role: {role!r} is none of {', '.join(_ROLES)}", file=sys.stderr)
        return 2
    from services.scheduler.app import main as scheduler

    return scheduler(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
