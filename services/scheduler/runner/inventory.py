"""What this machine has: cores, memory, GPUs and how fast those talk to each other."""

import csv
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from libs.common.errors import Invalid
from services.scheduler.domain.objects import Gpu, Link

_log = logging.getLogger(__name__)

_SMI_S = 20.0
_MOST_GPUS = 64
# GB/s, both directions together. An NVLink carries 50 since Volta; paths over PCIe as measured.
_NVLINK_GBPS = 50.0
_PATH_GBPS = {"PIX": 32.0, "PXB": 28.0, "PHB": 24.0, "NODE": 20.0, "SYS": 16.0}
_NVLINK = re.compile(r"NV(\d{1,3})")


def cpu_millis() -> int:
    """Return the cores that this process may use, in thousandths."""
    return 1000 * len(os.sched_getaffinity(0))


def memory_bytes(meminfo: str, cgroup_limit: str = "") -> int:
    """Return the memory that jobs may take: nine tenths of the machine's, or of this process's cgroup.

    Args:
        meminfo: the text of /proc/meminfo.
        cgroup_limit: the text of the cgroup's memory.max; "max" or "" means none.

    Raises:
        Invalid: when it tells no total.
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if match is None:
        raise Invalid("/proc/meminfo tells no MemTotal; give --memory-bytes")
    total = int(match[1]) * 1024
    if cgroup_limit.strip().isdigit():
        total = min(total, int(cgroup_limit))
    return total // 10 * 9


def this_machines_memory() -> int:
    """Return the memory that jobs may take on this machine."""
    limit = ""
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if path.is_file():
            limit = path.read_text()
            break
    return memory_bytes(Path("/proc/meminfo").read_text(), limit)


def gpus(setting: str) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Return GPUs and links: those of the machine ("detect"), none ("none"), or those of a JSON file.

    Raises:
        Invalid: when the file can't be read or is wrong.
    """
    if setting == "none":
        return (), ()
    if setting == "detect":
        return detected()
    try:
        text = Path(setting).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"--gpus: {setting!r} can't be read: {error}") from None
    return simulated(text)


def simulated(text: str) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Return the GPUs that a JSON text describes.

    `{"count": 4, "memoryBytes": 17179869184, "bandwidthGbps": [[0, 96], [96, 0]]}`: a symmetric matrix in
    GB/s, both directions together, of any size up to `count`; 0 means no link.

    Raises:
        Invalid: naming what is wrong.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"--gpus: is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Invalid('--gpus: must be an object such as {"count": 4}')
    unknown = sorted(set(value) - {"count", "memoryBytes", "bandwidthGbps"})
    if unknown:
        raise Invalid(f"--gpus: {unknown[0]!r} is none of count, memoryBytes, bandwidthGbps")
    count = _number(value.get("count"), "count", 0, _MOST_GPUS)
    memory = _number(value.get("memoryBytes", 16 * 2**30), "memoryBytes", 0, 2**50)
    matrix = value.get("bandwidthGbps", [])
    if not isinstance(matrix, list) or len(matrix) > count:
        raise Invalid(f"--gpus: bandwidthGbps must be a list of at most {count} rows")
    links = []
    for first, row in enumerate(matrix):
        if not isinstance(row, list) or len(row) != len(matrix):
            raise Invalid(
                f"--gpus: bandwidthGbps[{first}] must have {len(matrix)} entries, as there are rows"
            )
        for second, speed in enumerate(row):
            if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 <= speed <= 1e6:
                raise Invalid(f"--gpus: bandwidthGbps[{first}][{second}] must be a number from 0 to 1000000")
            if second < first and speed != matrix[second][first]:
                raise Invalid(f"--gpus: bandwidthGbps[{first}][{second}] isn't what [{second}][{first}] says")
            if first < second and speed:
                links.append(Link(first, second, float(speed)))
    return tuple(Gpu(index, "simulated", int(memory)) for index in range(count)), tuple(
        sorted(links, key=_pair)
    )


def _pair(link: Link) -> tuple[int, int]:
    return link.first, link.second


def _number(value: object, field: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Invalid(f"--gpus: {field}: {value!r} must be a whole number from {least} to {most}")
    return value


def detected() -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Return this machine's GPUs, as nvidia-smi tells them; none when it isn't there or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ()
    query = ["--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = parse_gpus(_run([program, *query]))
        return found, parse_links(_run([program, "topo", "-m"]), len(found)) if len(found) > 1 else ()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _log.error("nvidia-smi is there but can't be used, so that no GPU is offered: %s", error)
        return (), ()


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, timeout=_SMI_S, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "replace")


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of `nvidia-smi --query-gpu=index,name,memory.total`; raise ValueError."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    return tuple(Gpu(int(index), name.strip(), int(memory) * 2**20) for index, name, memory in rows)


def parse_links(text: str, count: int) -> tuple[Link, ...]:
    """Return the links of the matrix of `nvidia-smi topo -m`; raise ValueError when it isn't one.

    An entry is a number of NVLinks ("NV4") or the kind of path over PCIe ("PIX" … "SYS").
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    if len(rows) < count:
        raise ValueError(f"the topology has {len(rows)} rows for {count} GPUs")
    links = []
    for first, second in itertools.combinations(range(count), 2):
        entry = rows[first][1 + second]
        many = _NVLINK.fullmatch(entry)
        speed = _NVLINK_GBPS * int(many[1]) if many is not None else _PATH_GBPS.get(entry, 0.0)
        if speed:
            links.append(Link(first, second, speed))
    return tuple(links)
