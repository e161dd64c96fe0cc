"""The onnx package's own backend suite: its cases, run in a process that may crash or hang."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.pipeline import Stages, compile_model

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
MEMORY_BYTES = 6 * 1024**3
"""Of the process that runs cases."""

Answer = Callable[[Sequence[Any]], Sequence[Any]]
Peer = Callable[[onnx.ModelProto, Sequence[Sequence[Any]]], Answer]
"""Makes a model ready; it may look at the shapes of the inputs that will come, for bounds of dimensions."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test of the suite."""

    kind: str
    name: str
    test: Any

    @property
    def operators(self) -> str:
        """The operators that it is made of, those of bodies apart."""
        graph = load(self)[0].graph
        return "+".join(sorted({node.op_type for node in graph.node}))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended: "passed", "wrong", "refused" (an error that says why), "crashed" or "hung"."""

    kind: str
    name: str
    verdict: str
    reason: str = ""


def cases(kinds: Sequence[str] = KINDS) -> list[Case]:
    """Return the suite's cases in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases divides by 0 on purpose
        return [Case(kind, test.name, test) for kind in kinds for test in load_model_tests(kind=kind)]


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


def decomposed(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> Answer:
    """Our own path and nothing else: decomposed, merged, a plan as bytes, and back, run by the runtime."""
    plan = compile_model(
        model.SerializeToString(), _bounds(model, inputs), "the suite", Stages(lambda stage: None)
    ).plan
    program = Program(decode(encode(plan)))
    names, outputs = _inputs(model), [output.name for output in model.graph.output]

    def answer(given: Sequence[Any]) -> Sequence[Any]:
        got = program.run(dict(zip(names, given, strict=False)))
        return [got[name] for name in outputs]

    return answer


def _inputs(model: onnx.ModelProto) -> list[str]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [port.name for port in model.graph.input if port.name not in constants]


def _bounds(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> dict[str, tuple[int, int]]:
    """Return bounds for dimensions that cases give sizes beyond the default of 1 to 4,096."""
    wanted: dict[str, tuple[int, int]] = {}
    ports = {port.name: port for port in model.graph.input}
    for given in inputs:
        for name, array in zip(_inputs(model), given, strict=False):
            sizes = ports[name].type.tensor_type.shape.dim
            for size, length in zip(sizes, getattr(array, "shape", ()), strict=False):
                if size.dim_param and not 1 <= length <= 4096:
                    wanted[size.dim_param] = (min(length, 1), max(length, 4096))
    return wanted


def onnxruntime(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> Answer:
    """Run with ONNX Runtime, as it comes."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]

    def answer(given: Sequence[Any]) -> Sequence[Any]:
        found: Sequence[Any] = session.run(None, dict(zip(names, given, strict=False)))
        return found

    return answer


def reference(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> Answer:
    """Run with the onnx package's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    evaluator, names = ReferenceEvaluator(model), _inputs(model)

    def answer(given: Sequence[Any]) -> Sequence[Any]:
        found: Any = evaluator.run(None, dict(zip(names, given, strict=False)))
        return list(found)

    return answer


PEERS: Mapping[str, Peer] = {
    "isthmus": decomposed,
    "onnxruntime": onnxruntime,
    "reference": reference,
}


def run(case: Case, peer: Peer) -> Outcome:
    """Run a case, with the suite's own comparison: types, shapes, and its tolerances."""
    model, sets = load(case)
    try:
        answer = peer(model, [given for given, _ in sets])
        results = [answer(given) for given, _ in sets]
    except Exception as error:  # whatever a peer says of a model that it doesn't take
        return Outcome(case.kind, case.name, "refused", _short(error))
    for found, (_, expected) in zip(results, sets, strict=True):
        try:
            with np.errstate(all="ignore"):
                Runner.assert_similar_outputs(
                    list(expected), list(found), rtol=case.test.rtol, atol=case.test.atol
                )
        except Exception as error:  # an AssertionError, or what can't be compared at all
            return Outcome(case.kind, case.name, "wrong", _short(error))
    return Outcome(case.kind, case.name, "passed")


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: " + " ".join(str(error).split())[:240]


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
                yield Outcome(**json.loads(ours.recv()))
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
        outcome = run(case, PEERS[peer])
        pipe.send(
            json.dumps(
                {
                    "kind": outcome.kind,
                    "name": outcome.name,
                    "verdict": outcome.verdict,
                    "reason": outcome.reason,
                }
            )
        )
