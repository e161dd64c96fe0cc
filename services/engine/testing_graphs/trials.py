"""Trials of models, each by its seed, in a process that may crash or hang."""

from __future__ import annotations

import multiprocessing
import os
import resource
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Protocol

import onnx

from libs.common.errors import Precondition
from services.engine.testing_graphs.drawing import Draw, Seeded
from services.engine.testing_graphs.model import check, draw_model
from services.engine.testing_graphs.mutation import mutated
from services.engine.testing_graphs.real import check_file

MEMORY_BYTES = 4 * 1024**3
"""Of the process that tries."""


class Trial(Protocol):
    """What is tried of each seed."""

    def __call__(self, seed: int) -> str:
        """Return "equal", or "refused: " or "known: " and why; raises where something is wrong."""
        ...

    def text(self, seed: int) -> str:
        """Return the model of a seed for people."""
        ...


class RandomGraphs:
    """Plans of random graphs do as the onnx package or ONNX Runtime says."""

    def __call__(self, seed: int) -> str:
        """Check the graph of a seed."""
        drawn = draw_model(Seeded(seed))
        return "empty" if drawn is None else check(drawn)

    def text(self, seed: int) -> str:
        """Return the model of a seed for people."""
        drawn = draw_model(Seeded(seed))
        return "" if drawn is None else onnx.printer.to_text(drawn.model)


class MutatedModels:
    """Files with a few changes are refused, or their plans do as their peers say."""

    def __init__(self, models: Sequence[onnx.ModelProto]) -> None:
        self._models = models

    def __call__(self, seed: int) -> str:
        """Check the file of a seed."""
        return check_file(self.content(seed), seed)

    def content(self, seed: int) -> bytes:
        """Return the file of a seed."""
        draw = Draw(Seeded(seed))
        return mutated(draw.choice(self._models), draw)

    def text(self, seed: int) -> str:
        """Return the file of a seed for people."""
        content = self.content(seed)
        try:
            return onnx.printer.to_text(onnx.load_from_string(content))
        except Exception:  # it may be no model, or one that has no text
            return content.hex()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    seed: int
    is_good: bool
    text: str
    """What the trial returned, or what is wrong."""


def run_all(trial: Trial, seeds: Sequence[int], timeout_s: float) -> Iterator[Outcome]:
    """Yield the outcome of each seed; each crash, and each trial longer than `timeout_s`, is one."""
    context = multiprocessing.get_context("fork")  # what trials need is there already
    place = 0
    while place < len(seeds):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(trial, seeds[place:], theirs), daemon=True)
        process.start()
        theirs.close()
        what = ""
        try:
            while place < len(seeds):
                if not wait([ours], timeout_s):
                    what = f"took longer than {timeout_s:g} s"
                    break
                try:
                    is_good, text = ours.recv()
                except EOFError:
                    process.join()
                    what = f"crashed, exit {process.exitcode}"
                    break
                yield Outcome(seeds[place], is_good, text)
                place += 1
        finally:
            process.kill()
            process.join()
            ours.close()
        if place < len(seeds):
            yield Outcome(seeds[place], False, what)
            place += 1


def _work(trial: Trial, seeds: Sequence[int], pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # warnings of C++ code
    warnings.simplefilter("ignore")
    for seed in seeds:
        try:
            pipe.send((True, trial(seed)))
        except (AssertionError, Precondition) as error:
            pipe.send((False, str(error)))
        except Exception as error:  # a finding, too
            pipe.send((False, "".join(traceback.format_exception(error))))
