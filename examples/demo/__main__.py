"""`python -m examples.demo`: run the main job on a local stack and say what was seen."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.layout import cache_folder
from deploy.local.stack import Stack
from examples.demo.click import ClickModel
from examples.demo.data import own_log
from examples.demo.movielens import movielens
from examples.demo.scenario import value_profile
from examples.demo.story import Make, Plan, Story, dealt
from libs.common.errors import Error


def main() -> int:
    """Return 0 when every check holds, 1 when one doesn't or a step can't be done."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="your own event log, JSON Lines or CSV, instead of MovieLens-100K"
    )
    parser.add_argument("--event", help="with --data: event type to profile (default: the commonest)")
    parser.add_argument("--field", help="with --data: field to profile (default: the commonest text or list)")
    parser.add_argument("--devices", type=int, default=8, help="agents to start, at least 4 (default 8)")
    parser.add_argument(
        "--rate",
        type=float,
        default=Plan.events_per_s,
        help="events a second on each device (default %(default)g)",
    )
    parser.add_argument(
        "--replay-s",
        type=float,
        default=Plan.replay_s,
        help="seconds that the good version runs before the bad one comes (default %(default)g)",
    )
    parser.add_argument(
        "--epochs", type=int, default=4, help="most epochs of training, without --data (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--home", type=Path, help="folder of the local stack (default: ISTHMUS_HOME, or var)")
    parser.add_argument("--port-offset", type=int, help="added to every port of a stack that it starts")
    parser.add_argument("--keep", action="store_true", help="leave a stack that this command started running")
    options = parser.parse_args()
    if options.devices < 4 or options.rate <= 0:
        parser.error("--devices must be at least 4, and --rate more than 0")
    if options.replay_s < 0 or not 1 <= options.epochs <= 100:
        parser.error("--replay-s must not be negative, and --epochs from 1 to 100")
    try:
        with _scratch() as home:
            plan = Plan(devices=options.devices, events_per_s=options.rate, replay_s=options.replay_s)
            title, make = _subject(options, plan, home)
            with _stack(options) as stack:
                report = Story(plan, title, make, stack.gateway, stack.admin_key_file, home).run()
    except (Error, StackError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    report.show(options.json)
    return 0 if report.good else 1


def _subject(options: argparse.Namespace, plan: Plan, home: Path) -> tuple[str, Make]:
    """Return what the demo is about, and what makes its scenario; a log of one's own is read at once.

    Raises:
        Invalid: when the data can't be had or used.
    """
    if options.data:
        scenario = value_profile(own_log(options.data), home, options.event, options.field)
        dealt(scenario.log, plan)
        return scenario.log.title, lambda *_: scenario
    click = ClickModel(movielens(cache_folder(os.environ)), options.epochs)
    return click.title, click.scenario


@contextlib.contextmanager
def _stack(options: argparse.Namespace) -> Iterator[Stack]:
    """Give a running stack: the one of the home if it is up, else one that is taken down afterwards.

    With a log of one's own nothing is trained: a stack that is started for that alone has no part for it.
    """
    stack = Stack(options.home)
    started = not stack.running()
    if started:
        unused = () if options.keep or not options.data else ("engine", "scheduler")
        stack = Stack(options.home, options.port_offset, without={*stack.options.without, *unused})
    stack.up(lambda text: print(text, file=sys.stderr))
    try:
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
