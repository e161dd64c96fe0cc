"""The onnx package's own backend suite: its cases, run in a process that may crash or hang."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from benchmarks.onnx_peers import PEERS, Peer

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
MEMORY_BYTES = 6 * 1024**3
"""Of the process that runs cases."""
_EXPECTED_FAILURES = (
    Path(__file__).parent.parent / "tests" / "conformance" / "engine" / "expected_failures.txt"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One test of the suite."""

    kind: str
    name: str
    test: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended: "passed", "wrong", "refused" (an error that says why), "crashed" or "hung"."""

    kind: str
    name: str
    verdict: str
    reason: str = ""
    operators: tuple[str, ...] = ()
    """What its graph is made of, bodies apart."""


def cases(kinds: Sequence[str] = KINDS) -> list[Case]:
    """Return the suite's cases in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases divides by 0 on purpose
        return [Case(kind, test.name, test) for kind in kinds for test in load_model_tests(kind=kind)]


def expected_failures() -> dict[str, str]:
    """Return the reason for which a case doesn't pass on the decomposed path, by the case's name."""
    lines = [line for line in _EXPECTED_FAILURES.read_text().splitlines() if line and line[0] != "#"]
    return {name: reason.strip() for name, _, reason in (line.partition(":") for line in lines)}


def load(case: Case) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Return a case's model, and its pairs of inputs and expected outputs."""
    test = case.test
    if test.model is not None:
        return test.model, [(_arrays(given), _arrays(wanted)) for given, wanted in test.data_sets]
    if case.kind == "real":
        return _light(test)
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set*")):
        inputs = [_read(data / f"input_{n}.pb", port.type) for n, port in _there(model.graph.input, data)]
        outputs = [_read(data / f"output_{n}.pb", o.type) for n, o in enumerate(model.graph.output)]
        sets.append((inputs, outputs))
    return model, sets


def _there(ports: Sequence[Any], data: Path) -> list[tuple[int, Any]]:
    return [(n, port) for n, port in enumerate(ports) if (data / f"input_{n}.pb").exists()]


def _light(test: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Return a network that comes with the package; its weights are all of one value."""
    path = Path(onnx.__file__).parent.parent / test.url
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [
        Runner.generate_dummy_data(port, seed=0, name=test.model_name, random=False)
        for port in model.graph.input
        if port.name not in weights
    ]
    stem = str(path.with_suffix(""))
    outputs = [_read(Path(f"{stem}_output_{n}.pb"), o.type) for n, o in enumerate(model.graph.output)]
    return model, [(inputs, outputs)]


def _arrays(items: Sequence[Any]) -> list[Any]:
    return [numpy_helper.to_array(each) if isinstance(each, onnx.TensorProto) else each for each in items]


def _read(path: Path, type_: onnx.TypeProto) -> Any:
    kinds: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
        "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
    }
    message, convert = kinds.get(type_.WhichOneof("value") or "", (onnx.TensorProto, numpy_helper.to_array))
    content: Any = message()
    content.ParseFromString(path.read_bytes())
    return convert(content)


def run(case: Case, peer: Peer) -> Outcome:
    """Run a case, with the suite's own comparison: types, shapes, and its tolerances."""
    model, sets = load(case)
    operators = tuple(sorted({_name(node) for node in model.graph.node}))

    def outcome(verdict: str, error: BaseException | None = None) -> Outcome:
        return Outcome(case.kind, case.name, verdict, "" if error is None else _short(error), operators)

    try:
        answer = peer(model, [given for given, _ in sets])
        results = [answer(given) for given, _ in sets]
    except MemoryError as error:
        return outcome("crashed", error)
    except Exception as error:  # whatever a peer says of a model that it doesn't take
        return outcome("refused", error)
    for found, (_, expected) in zip(results, sets, strict=True):
        try:
            with np.errstate(all="ignore"):
                Runner.assert_similar_outputs(
                    list(expected), list(found), rtol=case.test.rtol, atol=case.test.atol
                )
        except Exception as error:  # an AssertionError, or what can't be compared at all
            return outcome("wrong", error)
    return outcome("passed")


def _name(node: onnx.NodeProto) -> str:
    return f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: " + " ".join(str(error).split())[:240]


def run_inline(chosen: Sequence[Case], peer: str) -> Iterator[Outcome]:
    """Run cases in this process: quickest, and what crashes or hangs does so here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in chosen:
            yield run(case, PEERS[peer])


def run_all(
    chosen: Sequence[Case], peer: str, timeout_s: float, budget_s: float | None = None
) -> Iterator[Outcome]:
    """Run cases in a process of their own, a new one after each that crashes or hangs.

    A case hangs when it takes longer than `timeout_s`. Ends early once `budget_s` is over, if one is given.
    """
    context = multiprocessing.get_context("fork")  # the cases are there already, and take seconds to make
    end = None if budget_s is None else time.monotonic() + budget_s
    place = 0
    while place < len(chosen):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(chosen[place:], peer, theirs), daemon=True)
        process.start()
        theirs.close()
        verdict = "crashed"
        while place < len(chosen):
            if end is not None and time.monotonic() > end:
                process.kill()
                process.join()
                return
            if not wait([ours], timeout_s):
                verdict = "hung"
                break
            try:
                told = json.loads(ours.recv())
                yield Outcome(**{**told, "operators": tuple(told["operators"])})
            except EOFError:
                break
            place += 1
        process.kill()
        process.join()
        ours.close()
        if place < len(chosen):
            case = chosen[place]
            yield Outcome(case.kind, case.name, verdict, f"exit {process.exitcode}")
            place += 1


def _work(chosen: Sequence[Case], peer: str, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # warnings of C++ code
    warnings.simplefilter("ignore")
    for case in chosen:
        pipe.send(json.dumps(asdict(run(case, PEERS[peer]))))
