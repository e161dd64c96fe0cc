"""``python -m deploy.local``: the local stack from the command line; ``make up``, ``make status`` and so on
call it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.layout import ROOT
from deploy.local.stack import Stack
from deploy.local.topology import OPTIONAL, Process
from libs.common.errors import Error

HOME = "where all of its state lies (default: $ISTHMUS_HOME, or var in the checkout)"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m deploy.local", description="Run the local stack.")
    top.add_argument(
        "--home",
        type=Path,
        help=HOME,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("--home", type=Path, default=argparse.SUPPRESS, help=HOME)
        return added

    up = command("up", "start it, and return when every process is healthy")
    up.add_argument("--port-offset", type=int, metavar="N", help="move every port by N")
    up.add_argument("--without", action="append", choices=OPTIONAL, help="leave this one out")
    up.add_argument(
        "--otlp-endpoint",
        type=_endpoint,
        metavar="HOST:PORT",
        help="send the services' traces there (OTLP over gRPC)",
    )
    up.add_argument("--tls", action="store_true", help="the gateway serves TLS, by the development authority")
    command("down", "stop it")
    status = command(
        "status", "show each process; exit status 0 when all are healthy, 1 when not, 3 when down"
    )
    status.add_argument("--json", action="store_true", help="as JSON")
    logs = command("logs", "show the last log lines")
    logs.add_argument("service", nargs="*", help="of these processes only")
    logs.add_argument("-n", "--lines", type=int, default=40, help="how many lines of each (default 40)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as more is logged")
    restart = command("restart", "stop and start it, or some of its processes")
    restart.add_argument("service", nargs="*", help="only these processes")
    return top


def _endpoint(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:4317")
    return text


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headers, *rows)
    )


def shown_path(path: Path) -> str:
    """Return a path as one would type it in the checkout."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def duration(seconds: float) -> str:
    """Return seconds for people."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def summary(stack: Stack, processes: Sequence[Process]) -> str:
    """Return what one wants to know after a start: where everything listens, and what to try next."""
    rows = [
        (process.name if number == 0 else "", endpoint.address, endpoint.what)
        for process in processes
        for number, endpoint in enumerate(process.endpoints)
    ]
    gateway = stack.endpoints["gateway"]
    key = shown_path(stack.layout.admin_key_file)
    security = f"-cacert {shown_path(stack.ca_file)}" if stack.options.tls else "-plaintext"
    lines = [
        table(("SERVICE", "ADDRESS", "WHAT"), rows),
        "",
        *stack.notes,
        f"operator's API key: {key}    logs: {shown_path(stack.layout.log_dir)}",
        "",
        "next:",
        "  .venv/bin/isthmus status    the services, as the gateway sees them (--help: what else it can do)",
        "  make demo                   a model trained, planned and released to eight agents, on real data",
        "  make status | logs | down   (make logs S=deployer: one service)",
        f'  .venv/bin/grpcurl {security} -H "authorization: Bearer $(cat {key})" {gateway} list',
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    """Tell progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def show_status(stack: Stack, as_json: bool) -> int:
    """Print the state of each process and return the exit status."""
    rows = stack.status()
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif not rows:
        print("the stack isn't running; start it with: make up")
    else:
        cells = [
            (
                row.name,
                row.state,
                str(row.pid or "-"),
                duration(row.uptime_s) if row.pid else "-",
                str(row.restarts),
                f"{row.rss_bytes / 2**20:.0f} MiB" if row.pid else "-",
                row.health or "healthy",
                row.last_exit,
            )
            for row in rows
        ]
        print(
            table(("SERVICE", "STATE", "PID", "UPTIME", "RESTARTS", "MEMORY", "HEALTH", "LAST CRASH"), cells)
        )
        if not stack.running():
            print(
                "\nthe supervisor is gone, or hangs: these run on without it. "
                "make up starts the stack anew, as it was; make down ends it"
            )
    if not rows:
        return 3
    return 1 if any(row.health for row in rows) else 0


def run(arguments: argparse.Namespace) -> int:
    """Carry out one command and return the exit status.

    Raises:
        StackError: it can't be carried out.
    """
    home = arguments.home
    if arguments.command == "up":
        stack = Stack(
            home,
            arguments.port_offset,
            without=arguments.without,
            tls=arguments.tls or None,
            otlp_endpoint=arguments.otlp_endpoint,
        )
        try:
            processes = stack.up(lambda text: say(f"{text} ..."))
        except KeyboardInterrupt:
            if stack.running():
                say("interrupted: the stack goes on starting; make status shows it, make down ends it")
            raise
        print(summary(stack, processes))
        return 0
    stack = Stack(home)
    if arguments.command == "down":
        print("stopped" if stack.down() else "the stack isn't running")
    elif arguments.command == "status":
        return show_status(stack, arguments.json)
    elif arguments.command == "restart":
        print(", ".join(stack.restart(*arguments.service)) + ": restarted and healthy")
    elif arguments.command == "logs":
        files = [str(path) for path in stack.log_files(*arguments.service)]
        follow = ["-F"] if arguments.follow else []
        os.execvp("tail", ["tail", "-n", str(arguments.lines), *follow, *files])
    return 0


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    try:
        return run(parser().parse_args(argv))
    except (StackError, Error) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
