"""The plan cache gives back what it was given, whole, and stays within its bound."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.engine.cache import PlanCache
from services.engine.domain.explanation import Origins
from services.engine.domain.model import Made, Verdict

MADE = Made(b"a plan\nof two lines", Origins({"Gemm": 2}, 3), Verdict(1e-6, 8))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def spoil_only_file(folder: Path, spoil: Callable[[bytes], bytes]) -> None:
    (file,) = folder.iterdir()
    file.write_bytes(spoil(file.read_bytes()))


async def test_what_was_put_comes_back_also_after_a_restart(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, 1 << 20)
    assert await cache.get("k") is None
    await cache.put("k", MADE)
    assert await cache.get("k") == MADE
    assert await PlanCache(tmp_path, 1 << 20).get("k") == MADE


async def test_what_was_not_compared_is_not_kept(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, 1 << 20)
    await cache.put("k", Made(b"plan", Origins({}, 0), None))
    assert await cache.get("k") is None


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: b"", lambda data: b"{}\nplan"])
async def test_a_spoilt_file_is_removed(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    cache = PlanCache(tmp_path, 1 << 20)
    await cache.put("k", MADE)
    spoil_only_file(tmp_path, spoil)
    assert await cache.get("k") is None
    assert names(tmp_path) == set()


async def test_what_a_crash_left_half_written_goes(tmp_path: Path) -> None:
    half = tmp_path / ".k.plan.1234.tmp"
    half.write_bytes(b"half")
    PlanCache(tmp_path, 1 << 20)
    assert names(tmp_path) == set()


async def test_the_least_used_gives_way(tmp_path: Path) -> None:
    size = 1000
    cache = PlanCache(tmp_path, 4 * size)  # of 3 with their heads
    for number, key in enumerate("abc"):
        await cache.put(key, Made(bytes(size), MADE.origins, MADE.verdict))
        os.utime(tmp_path / f"{key}.plan", ns=(number, number))
    assert await cache.get("a") is not None
    await cache.put("d", Made(bytes(size), MADE.origins, MADE.verdict))
    assert names(tmp_path) == {"a.plan", "c.plan", "d.plan"}
    await cache.put("large", Made(bytes(5 * size), MADE.origins, MADE.verdict))
    assert await cache.get("large") is None
    assert await cache.get("d") is not None
