"""What the demo says while it runs: one screen that is kept up to date, or plain lines without a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from libs.cli.output import human_seconds

Facts = Callable[[], Mapping[str, str]]
"""What is known right now, for people, by name; called some times a second."""

_SAID = 6
"""Lines of what was said last on the screen."""
_A_SECOND = 4


class State(Enum):
    """Where a step is."""

    TO_COME = "to come"
    RUNS = "runs"
    DONE = "done"
    BROKEN = "broken"


@dataclass(slots=True)
class Step:
    """A part of the demo."""

    title: str
    state: State = State.TO_COME
    started_s: float = 0.0
    ended_s: float = 0.0
    share: float | None = None
    """How much of it is done, from 0 to 1; None where nobody knows."""


class Progress:
    """Says what happens as plain lines, each with the time since the demo began."""

    def __init__(self, titles: Sequence[str], out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self.steps = {title: Step(title) for title in titles}
        self.facts: Facts = dict

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Be in a step; it is broken when an error leaves it."""
        step = self.steps[title]
        step.state, step.started_s = State.RUNS, self.elapsed_s
        try:
            yield step
        except BaseException:
            step.state = State.BROKEN
            raise
        else:
            step.state, step.share = State.DONE, None
        finally:
            step.ended_s = self.elapsed_s

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Be seen."""
        yield

    def say(self, text: str) -> None:
        """Say what happens; from any thread."""
        with self._lock:
            self._tell(text)

    def _tell(self, text: str) -> None:
        self._out.write(f"[{self.elapsed_s:6.1f} s] {text}\n")
        self._out.flush()


class Screen(Progress):
    """Shows the steps with their state, time and bars, what is known, and what was said last."""

    def __init__(self, titles: Sequence[str], console: Console) -> None:
        super().__init__(titles)
        self._console = console
        self._said: deque[str] = deque(maxlen=_SAID)
        self._spinner = Spinner("dots")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw until the block is left; what was drawn last stays."""
        with Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=_A_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def _tell(self, text: str) -> None:
        self._said.append(f"{self.elapsed_s:6.1f} s  {text}")

    def render(self) -> RenderableType:
        """Return what is to be seen now."""
        with self._lock:
            said = list(self._said)
        steps = Table(box=None, show_header=False, pad_edge=False)
        steps.add_column(width=2)
        steps.add_column(no_wrap=True)
        steps.add_column(justify="right", no_wrap=True, min_width=8)
        steps.add_column(width=30)
        for step in self.steps.values():
            steps.add_row(*self._row(step))
        facts = Table(box=None, show_header=False, pad_edge=False)
        for name, value in self.facts().items():
            facts.add_row(Text(name, style="dim"), Text(value))
        lines = [Text(line, no_wrap=True, overflow="ellipsis", style="dim") for line in said]
        return Group(steps, Text(), facts, Text(), *lines)

    def _row(self, step: Step) -> tuple[RenderableType, RenderableType, RenderableType, RenderableType]:
        spent = (self.elapsed_s if step.state is State.RUNS else step.ended_s) - step.started_s
        match step.state:
            case State.TO_COME:
                return Text("·", style="dim"), Text(step.title, style="dim"), "", ""
            case State.RUNS:
                bar = (
                    ""
                    if step.share is None
                    else ProgressBar(total=1.0, completed=min(max(step.share, 0.0), 1.0), width=30)
                )
                return self._spinner, Text(step.title, style="bold"), human_seconds(spent), bar
            case State.DONE:
                return Text("✓", style="green"), Text(step.title), human_seconds(spent), ""
            case State.BROKEN:
                return Text("✗", style="red"), Text(step.title, style="red"), human_seconds(spent), ""


def progress(titles: Sequence[str]) -> Progress:
    """Return a screen where standard error is a terminal that can show one, else plain lines."""
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return Screen(titles, console)
    return Progress(titles)
