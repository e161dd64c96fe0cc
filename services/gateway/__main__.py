"""`python -m services.gateway`: the door, the tunnel (`--role tunnel`), or `admin-key`."""

import sys
from collections.abc import Sequence

_ROLES = ("gateway", "tunnel")


def _take_role(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the role and the arguments without it."""
    role, rest, words = "gateway", [], iter(arguments)
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
    if arguments[:1] == ["admin-key"]:
        from services.gateway.admin_key import main as admin_key

        return admin_key(arguments[1:])
    role, rest = _take_role(arguments)
    if role == "tunnel":
        from services.gateway.tunnel.app import main as tunnel

        return tunnel(rest)
    if role != "gateway":
        print(f"--role: {role!r} is none of {', '.join(_ROLES)}", file=sys.stderr)
        return 2
    from services.gateway.app import main as door

    return door(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
