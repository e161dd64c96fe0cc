"""`python -m examples.demo`: run the main job on a local stack and say what was seen."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deploy.local import topology
from deploy.local.errors import StackError
from deploy.local.layout import cache_folder
from deploy.local.stack import Stack
from examples.demo.click import ClickModel
from examples.demo.data import own_log
from examples.demo.fleet import dealt
from examples.demo.movielens import movielens
from examples.demo.plan import QUICK, Plan
from examples.demo.progress import progress
from examples.demo.scenario import value_profile
from examples.demo.story import Ground, OwnLog, Story, Subject, titles
from libs.common.errors import Error

_INTERRUPTED = 130


def main() -> int:
    """Return 0 when every check holds, 1 when one doesn't or a step can't be done, 130 when interrupted."""
    options = _options()
    plan = _plan(options)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with _scratch() as home:
            subject = _subject(options, plan, home)
            with _stack(options) as stack:
                shown = progress(titles(subject))
                ground = ground_of(stack)
                with shown.shown():
                    report = Story(plan, subject, ground, home, shown).run()
    except (Error, StackError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted; what it started has been taken down\n")
        return _INTERRUPTED
    report.show(options.json)
    return 0 if report.good else 1


def _interrupt(number: int, frame: object) -> None:
    """End as Ctrl-C does: agents, stack and scratch are taken down, whatever is sent meanwhile."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="your own event log, JSON Lines or CSV, instead of MovieLens-100K"
    )
    parser.add_argument("--event", help="with --data: event type to profile (default: the commonest)")
    parser.add_argument("--field", help="with --data: field to profile (default: the commonest text or list)")
    parser.add_argument("--quick", action="store_true", help="a small one: few devices, little training")
    parser.add_argument("--devices", type=int, help=f"agents to start, at least 4 (default {Plan().devices})")
    parser.add_argument(
        "--rate", type=float, help=f"events a second on each device (default {Plan().events_per_s:g})"
    )
    parser.add_argument(
        "--replay-s",
        type=float,
        help=f"seconds that the good version runs before anything else happens (default {Plan().replay_s:g})",
    )
    parser.add_argument(
        "--epochs", type=int, help=f"most epochs of training, without --data (default {Plan().epochs})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--home", type=Path, help="folder of the local stack (default: ISTHMUS_HOME, or var)")
    parser.add_argument("--port-offset", type=int, help="added to every port of a stack that it starts")
    parser.add_argument("--keep", action="store_true", help="leave a stack that this command started running")
    options = parser.parse_args()
    plan = _plan(options)
    if plan.devices < 4 or plan.events_per_s <= 0:
        parser.error("--devices must be at least 4, and --rate more than 0")
    if plan.replay_s < 0 or not 1 <= plan.epochs <= 100:
        parser.error("--replay-s must not be negative, and --epochs from 1 to 100")
    return options


def _plan(options: argparse.Namespace) -> Plan:
    chosen = {
        "devices": options.devices,
        "events_per_s": options.rate,
        "replay_s": options.replay_s,
        "epochs": options.epochs,
    }
    wanted = {name: value for name, value in chosen.items() if value is not None}
    return replace(QUICK if options.quick else Plan(), **wanted)


def _subject(options: argparse.Namespace, plan: Plan, home: Path) -> Subject:
    """Return what the demo is about; a log of one's own is read at once.

    Raises:
        Invalid: when the data can't be had or used.
    """
    if options.data:
        scenario = value_profile(own_log(options.data), home, options.event, options.field)
        dealt(scenario.log, plan)
        return OwnLog(scenario)
    return ClickModel(movielens(cache_folder(os.environ)), plan)


def ground_of(stack: Stack) -> Ground:
    """Return what a story needs of a running stack."""
    host, _, port = stack.endpoints["tunnel"].rpartition(":")
    return Ground(stack.gateway, stack.admin_key_file, f"http://{host}:{int(port) + topology.METRICS}")


@contextlib.contextmanager
def _stack(options: argparse.Namespace) -> Iterator[Stack]:
    """Give a running stack: the one of the home if it is up, else one that is taken down afterwards.

    With a log of one's own nothing is trained: a stack that is started for that alone has no part for it.
    """
    stack = Stack(options.home)
    started = not stack.running()
    if started:
        unused = () if options.keep or not options.data else ("engine", "scheduler", "serving", "tuner")
        stack = Stack(options.home, options.port_offset, without={*stack.options.without, *unused})
    try:
        stack.up(lambda text: print(text, file=sys.stderr))
        yield stack
    finally:
        if started and not options.keep:
            stack.down()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Give a short folder: a Unix socket's path holds about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="isthmus-demo-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
