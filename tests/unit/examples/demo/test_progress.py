"""What is seen while the demo runs: plain lines, or a screen."""

import io

import pytest
from rich.console import Console

from examples.demo.progress import Progress, Screen, State, progress

TITLES = ("train", "release", "count")


def drawn(screen: Screen) -> str:
    """Return the screen as text."""
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(screen.render())
    return capture.get()


def test_lines_bear_the_time() -> None:
    out = io.StringIO()
    lines = Progress(TITLES, out)
    with lines.shown(), lines.step("train"):
        lines.say("epoch 1 of 4")
    (line,) = out.getvalue().splitlines()
    assert line.startswith("[")
    assert line.endswith(" s] epoch 1 of 4")
    assert "0." in line


def test_without_a_terminal_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    assert type(progress(TITLES)) is Progress


def test_a_screen_shows_steps_facts_and_what_was_said_last() -> None:
    screen = Screen(TITLES, Console(file=io.StringIO()))
    screen.facts = lambda: {"devices": "8, 1,234 events"}
    with screen.step("train"):
        screen.say("epoch 1 of 4")
    with screen.step("release") as step:
        step.share = 0.5
        for number in range(9):
            screen.say(f"line {number}")
        text = drawn(screen)
    train, release, count, *_ = text.splitlines()
    assert train.startswith("✓")
    assert "train" in train
    assert "release" in release
    assert "━" in release
    assert count.split() == ["·", "count"]
    assert "8, 1,234 events" in text
    assert "line 8" in text
    assert "line 2" not in text
    assert "epoch" not in text
    assert "━" not in drawn(screen)


def test_a_step_that_an_error_leaves_is_broken() -> None:
    screen = Screen(TITLES, Console(file=io.StringIO()))
    with pytest.raises(ValueError, match="no"), screen.step("train"):
        raise ValueError("no")
    assert screen.steps["train"].state is State.BROKEN
    assert drawn(screen).startswith("✗")
    assert screen.steps["release"].state is State.TO_COME
