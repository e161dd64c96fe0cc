import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from services.scheduler.domain.objects import Gpu, Link
from services.scheduler.runner import inventory
from services.scheduler.runner.config import RunnerConfig

MEMINFO = "MemTotal:       32910160 kB\nMemFree:          123 kB\n"

# Four GPUs: two pairs by NVLink, the pairs apart across sockets.
#
#   0 ══NV4══ 1        2 ══NV2══ 3
#        └────SYS/NODE────┘
TOPOLOGY = (
    "\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tSYS\t0-15\t0\n"
    "GPU1\tNV4\t X \tNODE\tSYS\t0-15\t0\n"
    "GPU2\tSYS\tNODE\t X \tNV2\t16-31\t1\n"
    "GPU3\tSYS\tSYS\tNV2\t X \t16-31\t1\n"
    "\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)


def test_memory_is_nine_tenths_of_the_machines_or_of_the_cgroups() -> None:
    assert inventory.memory_bytes(MEMINFO) == 32910160 * 1024 // 10 * 9
    assert inventory.memory_bytes(MEMINFO, "max\n") == inventory.memory_bytes(MEMINFO)
    assert inventory.memory_bytes(MEMINFO, "1000000\n") == 900_000
    assert inventory.memory_bytes(MEMINFO, str(2**63)) == inventory.memory_bytes(MEMINFO)
    with pytest.raises(Invalid, match="--memory-bytes"):
        inventory.memory_bytes("nothing\n")


def test_this_machine_has_something() -> None:
    assert inventory.cpu_millis() >= 1000
    assert inventory.this_machines_memory() > 2**20


def test_gpus_and_links_of_nvidia_smi() -> None:
    text = "0, NVIDIA H200, 143771\n1, NVIDIA H200, 143771\n\n"
    assert inventory.parse_gpus(text) == (
        Gpu(0, "NVIDIA H200", 143771 * 2**20),
        Gpu(1, "NVIDIA H200", 143771 * 2**20),
    )
    assert inventory.parse_links(TOPOLOGY, 4) == (
        Link(0, 1, 200.0),
        Link(0, 2, 16.0),
        Link(0, 3, 16.0),
        Link(1, 2, 20.0),
        Link(1, 3, 16.0),
        Link(2, 3, 100.0),
    )
    for bad in ("", "No devices were found", "0, x"):
        with pytest.raises(ValueError):  # noqa: PT011 - only the kind counts
            inventory.parse_links(bad, 2)
    with pytest.raises(ValueError):  # noqa: PT011
        inventory.parse_gpus("NVIDIA-SMI has failed")


def test_a_tool_that_fails_offers_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert inventory.gpus("detect") == ((), ())
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho broken; exit 9\n")
    tool.chmod(0o755)
    assert inventory.gpus("detect") == ((), ())


def test_a_tool_that_works_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = topo ]; then printf "{TOPOLOGY.encode("unicode_escape").decode()}"\n'
        "else for i in 0 1 2 3; do echo $i, A100, 40960; done; fi\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus, links = inventory.gpus("detect")
    assert gpus == tuple(Gpu(i, "A100", 40 * 2**30) for i in range(4))
    assert len(links) == 6


def test_simulated_gpus(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps({"count": 3, "memoryBytes": 5, "bandwidthGbps": [[0, 96], [96, 0]]}))
    assert inventory.gpus(str(path)) == (
        tuple(Gpu(index, "simulated", 5) for index in range(3)),
        (Link(0, 1, 96.0),),
    )
    assert inventory.gpus("none") == ((), ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "object"),
        ("{}", "count"),
        ('{"count": 65}', "0 to 64"),
        ('{"count": true}', "whole number"),
        ('{"count": 1, "memory": 1}', "'memory'"),
        ('{"count": 1, "memoryBytes": -1}', "memoryBytes"),
        ('{"count": 1, "bandwidthGbps": 7}', "rows"),
        ('{"count": 1, "bandwidthGbps": [[0, 1], [1, 0]]}', "at most 1 rows"),
        ('{"count": 2, "bandwidthGbps": [[0, 1], [1]]}', r"bandwidthGbps\[1\]"),
        ('{"count": 2, "bandwidthGbps": [[0, 1], [2, 0]]}', "isn't what"),
        ('{"count": 2, "bandwidthGbps": [[0, NaN], [1, 0]]}', "number from 0"),
        ('{"count": 2, "bandwidthGbps": [[0, "x"], [1, 0]]}', "number from 0"),
    ],
)
def test_a_wrong_description_of_gpus_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        inventory.simulated(text)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="can't be read"):
        inventory.gpus(str(tmp_path / "none.json"))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_no_json_crashes_it(value: object) -> None:
    for made in (value, {"count": value}, {"count": 2, "bandwidthGbps": value}):
        try:
            gpus, links = inventory.simulated(json.dumps(made))
        except Invalid:
            continue
        assert all(link.first < link.second < len(gpus) for link in links)


def test_the_example_of_the_manual_works() -> None:
    manual = Path(__file__).parents[5] / "docs" / "scheduler-runner.md"
    example = manual.read_text().partition("```json gpus\n")[2].partition("```")[0]
    gpus, links = inventory.simulated(example)
    assert len(gpus) == 4
    assert max(link.bandwidth_gbps for link in links) == 96.0


def test_the_manual_names_only_flags_that_are_there() -> None:
    manual = (Path(__file__).parents[5] / "docs" / "scheduler-runner.md").read_text()
    flags = {setting.name.replace("_", "-") for setting in dataclasses.fields(RunnerConfig)}
    named = set(re.findall(r"--([a-z][a-z-]+)", manual)) - {"role", "help"}
    assert {flag.removeprefix("no-") for flag in named} <= flags
