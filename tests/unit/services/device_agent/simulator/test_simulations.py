"""Room, fetching, what a simulation's process may say: no processes, a fake clock."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from libs.common.blobs import BlobRef
from libs.common.errors import Error, Exhausted, Internal, Invalid, NotFound, Unavailable
from libs.common.names import TaskName
from libs.common.sizes import size_text
from libs.common.testing import FakeClock, FakeRandomness
from libs.task.manifest import check_manifest
from libs.task.testing import SCRIPT, make_manifest
from services.device_agent.simulator.simulations import Limits, Simulations
from services.device_agent.simulator.verdict import Verdict

TASK = TaskName("acme", "genres")
MANIFEST = make_manifest()
EVENTS = BlobRef.of(b"events")
GOOD: Mapping[str, Any] = {"verdict": Verdict(passed=True, run_count=3).to_json()}


class Meter:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.counts: list[int] = []

    def running(self, count: int) -> None:
        self.counts.append(count)

    def ended(self, outcome: str, seconds: float) -> None:
        self.outcomes.append(outcome)


class Rig:
    """Simulations whose process is a function: `said` is what it says, `during` is awaited before that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: Any = GOOD
        self.during = asyncio.Event()
        self.during.set()
        self.free = 1 << 40
        self.downloads: list[tuple[str, str]] = []
        self.lacking: Error | None = None
        self.meter = Meter()
        self.clock = FakeClock()
        self.simulations = Simulations(
            folder,
            self,
            self.run_child,
            Limits(2, 60.0, 1 << 20, 1 << 20),
            self.clock,
            FakeRandomness(),
            self.meter,
            free_bytes=lambda path: self.free,
        )

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        if self.lacking is not None:
            raise self.lacking
        self.downloads.append((tenant, path.name))
        path.write_bytes(b"x")  # noqa: ASYNC240

    async def run_child(self, folder: Path, deadline_s: float) -> Mapping[str, Any]:
        assert deadline_s == 60.0
        assert (folder / "manifest").read_bytes() == MANIFEST.SerializeToString()
        await self.during.wait()
        found: Mapping[str, Any] = self.said
        return found

    async def simulate(self, events: BlobRef | None = EVENTS, task: TaskName = TASK) -> Verdict:
        return await self.simulations.simulate(
            task, MANIFEST.SerializeToString(), check_manifest(MANIFEST), events
        )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_it_fetches_the_tenants_files_and_leaves_nothing(rig: Rig) -> None:
    verdict = await rig.simulate()
    assert verdict == Verdict(passed=True, run_count=3)
    script = BlobRef.of(SCRIPT).digest.removeprefix("sha256:")
    assert rig.downloads == [("acme", script), ("acme", "events.jsonl")]
    assert list(rig.folder.iterdir()) == []
    await rig.simulate(events=None)
    assert len(rig.downloads) == 3
    assert (rig.meter.outcomes, rig.meter.counts) == (["passed", "passed"], [1, 0, 1, 0])


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"verdict": 3},
        {"verdict": {"passed": True}},
        {"error": "no"},
        {"error": {"class": "KeyboardInterrupt", "reason": "", "message": ""}},
        {"error": {"class": "Internal"}},
    ],
)
async def test_a_process_that_says_anything_else_is_a_fault_of_ours(rig: Rig, said: object) -> None:
    rig.said = said
    with pytest.raises(Internal, match="something else than a verdict"):
        await rig.simulate()
    assert list(rig.folder.iterdir()) == []
    assert rig.meter.outcomes == ["error"]


@pytest.mark.parametrize("kind", [Invalid, Exhausted, Unavailable, Internal])
async def test_a_process_may_refuse(rig: Rig, kind: type[Error]) -> None:
    rig.said = {"error": {"class": kind.__name__, "reason": "WHY", "message": "events: line 3"}}
    with pytest.raises(kind, match="events: line 3") as raised:
        await rig.simulate()
    assert raised.value.reason == "WHY"


async def test_files_that_cannot_be_had_end_it_without_a_trace(rig: Rig) -> None:
    rig.lacking = NotFound("digest: isn't a blob of this tenant")
    with pytest.raises(NotFound):
        await rig.simulate()
    assert list(rig.folder.iterdir()) == []
    assert rig.meter.counts[-1] == 0


async def test_room_is_reserved_while_they_run_and_given_back(rig: Rig) -> None:
    rig.during.clear()
    # What one needs: three times its script, eight times its events, a MiB to write, beside the reserve.
    need = 3 * len(SCRIPT) + 8 * EVENTS.size_bytes + (1 << 20)
    rig.free = 2 * need - 1 + (1 << 20)
    first = asyncio.create_task(rig.simulate())
    await rig.clock.wait_for_sleepers()
    with pytest.raises(Exhausted, match="needs 1 MiB of disk") as refused:
        await rig.simulate()
    assert f"{size_text(rig.free)} are free" in refused.value.message
    assert "1 MiB must stay free and 1 MiB are promised to other versions" in refused.value.message
    assert (refused.value.reason, refused.value.retry_after_s) == ("DISK_FULL", 30.0)
    rig.free += 1
    second = asyncio.create_task(rig.simulate())
    await rig.clock.wait_for_sleepers(2)
    with pytest.raises(Exhausted, match="tries 2 versions already") as busy:
        await rig.simulate()
    assert busy.value.reason == "SIMULATOR_BUSY"
    rig.during.set()
    assert all(verdict.passed for verdict in await asyncio.gather(first, second))
    assert (await rig.simulate()).passed
    assert rig.meter.outcomes == ["refused", "refused", "passed", "passed", "passed"]


async def test_too_much_written_fails_the_version(rig: Rig) -> None:
    rig.during.clear()
    running = asyncio.create_task(rig.simulate())
    await rig.clock.wait_for_sleepers()
    (folder,) = rig.folder.iterdir()
    (folder / "agent" / "big").write_bytes(bytes(2 << 20))
    rig.clock.advance(1.0)
    verdict = await running
    assert (verdict.passed, verdict.reason) == (False, "SCRATCH_FULL")
    assert list(rig.folder.iterdir()) == []


def nested(folder: Path, name: str) -> None:
    """Make folders in folders, more than a path can name."""
    there = os.open(folder, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir(name, dir_fd=there)
        below = os.open(name, os.O_RDONLY, dir_fd=there)
        os.close(there)
        there = below
    os.close(there)


async def test_folders_beyond_what_a_path_can_name_fail_the_version_and_are_removed(rig: Rig) -> None:
    rig.during.clear()
    running = asyncio.create_task(rig.simulate())
    await rig.clock.wait_for_sleepers()
    (folder,) = rig.folder.iterdir()
    nested(folder / "agent", "d" * 200)
    rig.clock.advance(1.0)
    verdict = await running
    assert (verdict.passed, verdict.reason) == (False, "SCRATCH_FULL")
    assert "can't be looked into" in verdict.message
    assert list(rig.folder.iterdir()) == []
    nested(rig.folder, "d")
    await rig.simulations.sweep()
    assert list(rig.folder.iterdir()) == []


async def test_one_given_up_leaves_nothing(rig: Rig) -> None:
    rig.during.clear()
    running = asyncio.create_task(rig.simulate())
    await rig.clock.wait_for_sleepers()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert list(rig.folder.iterdir()) == []
    assert (rig.meter.outcomes, rig.meter.counts) == (["cancelled"], [1, 0])


async def test_what_an_earlier_process_left_is_swept(
    rig: Rig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left = rig.folder / "left" / "agent"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"x")
    (rig.folder / "stray").write_bytes(b"x")
    kept = tmp_path_factory.mktemp("kept")
    (rig.folder / "link").symlink_to(kept)
    await rig.simulations.sweep()
    assert list(rig.folder.iterdir()) == []
    assert kept.exists()


async def test_what_cannot_be_right_is_refused_before_anything_is_fetched(rig: Rig) -> None:
    with pytest.raises(Invalid, match="is not the parent's"):
        await rig.simulate(task=TaskName("acme", "other"))
    with pytest.raises(Invalid, match="more than 16 MiB"):
        await rig.simulate(events=BlobRef(EVENTS.digest, (16 << 20) + 1))
    assert rig.downloads == []
