"""The simulator runs the scripts of every tenant, and so only where the kernel confines them."""

from pathlib import Path

import pytest

from libs.common.blobs import BlobRef
from libs.task.testing import make_manifest
from services.device_agent.simulator import child
from services.device_agent.simulator.leash import run_child
from services.device_agent.simulator.testing import running_bench
from tests.integration.device_agent.simulator.endless import endless

# It leaves a mark when it is as much as loaded.
SCRIPT = b"import os\nopen(os.environ['TMPDIR'] + '/mark', 'w')\ndef pre(context): return {}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a simulation finds when it starts."""
    folder = tmp_path / "simulation"
    (folder / child.BLOBS).mkdir(parents=True)
    (folder / child.HOME).mkdir()
    (folder / child.MANIFEST).write_bytes(make_manifest(script=SCRIPT).SerializeToString())
    (folder / child.BLOBS / BlobRef.of(SCRIPT).digest.removeprefix("sha256:")).write_bytes(SCRIPT)
    return folder


async def test_without_what_is_demanded_no_script_is_loaded(folder: Path) -> None:
    said = await run_child(folder, 60.0, ("landlock", "a moat", "seccomp"))
    assert said["error"]["class"] == "Internal"
    assert said["error"]["reason"] == "NOT_CONFINED"
    assert "(a moat missing)" in said["error"]["message"]
    assert "--allow-unconfined" in said["error"]["message"]
    # It would have been loaded otherwise.
    said = await run_child(folder, 60.0, ("landlock", "seccomp"))
    assert said["verdict"]["passed"] is True


@pytest.mark.parametrize(
    ("flags", "demanded"), [((), ["landlock", "seccomp"]), (("--allow-unconfined",), [])]
)
async def test_the_simulator_demands_it_unless_told_otherwise(
    tmp_path: Path, flags: tuple[str, ...], demanded: list[str]
) -> None:
    async with running_bench(tmp_path, *flags) as bench, endless(bench) as (_, processes):
        words = Path(f"/proc/{processes[0]}/cmdline").read_text().split("\0")  # noqa: ASYNC240
        assert words[words.index("simulation") + 4 : -1] == demanded
