"""Counting a release's devices, and when it is done anew."""

import pytest

from libs.common.names import DeviceName, ReleaseName, VersionName
from libs.common.testing import START, FakeClock
from services.deployer.domain import census as module
from services.deployer.domain.buckets import bucket
from services.deployer.domain.census import Census
from services.deployer.domain.model import Device, FleetRow, Gate, Release, StepStatus
from services.deployer.domain.rollout import Books, Offer
from services.deployer.stores.memory import MemoryStore


def release(name: str = "r1", share: int = 10_000, policy: str = "") -> Release:
    return Release(
        name=ReleaseName("acme", name),
        version=VersionName("acme", "genres", "1"),
        policy_json=policy,
        shares=(share,),
        gate=Gate(),
        salt=b"s" * 16,
        create_time=START,
        creator="me",
        steps=(StepStatus(share, START),),
    )


async def fleet(count: int, *, store: MemoryStore | None = None, start: int = 0) -> MemoryStore:
    store = store or MemoryStore()
    for index in range(start, start + count):
        device = Device(
            DeviceName("acme", f"d{index}"),
            b"k",
            {"os": "linux" if index % 2 else "android"},
            START,
            START,
            reported=("genres@1",) if index % 3 == 0 else (),
            revoked=index % 5 == 4,
        )
        await store.run(lambda tx, device=device: tx.add_device(device))
    return store


def counting(store: MemoryStore) -> list[int]:
    """Return a list that grows with each pass over the fleet."""
    passes: list[int] = []
    real = store.read

    async def read(work: object) -> object:
        result = await real(work)  # type: ignore[arg-type]
        if getattr(work, "__name__", "") == "page":
            passes.append(1)
        return result

    store.read = read  # type: ignore[method-assign, assignment]
    return passes


async def test_it_counts_by_policy_share_and_revocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 7)
    store = await fleet(100)
    made = release(share=5000, policy='{"eq": ["os", "linux"]}')
    others = [Offer.of(release("all")), Offer.of(release("none", policy='{"eq": ["os", "beos"]}'))]
    selection = await Census(store, Books(), FakeClock()).count(
        Offer.of(made), opened_from=1000, others=others
    )
    linux = [i for i in range(100) if i % 2 and i % 5 != 4]
    inside = [i for i in linux if bucket(made.salt, f"d{i}") < 5000]
    assert (selection.fleet, selection.selected, selection.targeted) == (80, len(linux), len(inside))
    assert set(selection.already) == {
        f"d{i}" for i in inside if i % 3 == 0 and bucket(made.salt, f"d{i}") >= 1000
    }
    assert selection.shared_with == {ReleaseName("acme", "all")}
    assert selection.empty == {ReleaseName("acme", "none")}


async def test_it_counts_again_only_when_the_fleet_or_the_share_has_changed() -> None:
    store = await fleet(10)
    passes = counting(store)
    census = Census(store, Books(), FakeClock())
    first = await census.of(release())
    assert await census.of(release()) == first
    assert len(passes) == 1
    await fleet(1, store=store, start=20)
    assert (await census.of(release())).fleet == first.fleet + 1
    assert (await census.of(release(share=1))).targeted < first.targeted
    assert len(passes) == 3
    census.forget(release().name)
    await census.of(release(share=1))
    assert len(passes) == 4


async def test_a_large_fleet_that_keeps_changing_is_not_counted_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LARGE", 1)
    clock = FakeClock()
    store = await fleet(10)
    passes = counting(store)

    real = store.read

    async def slow(work: object) -> object:
        clock.advance(0.1)
        return await real(work)  # type: ignore[arg-type]

    store.read = slow  # type: ignore[method-assign, assignment]
    census = Census(store, Books(), clock)
    for start in range(20, 24):
        await census.of(release())
        await fleet(1, store=store, start=start)
    assert len(passes) == 1
    clock.advance(60)
    await census.of(release())
    assert len(passes) == 2


def test_rows_of_unknown_attributes_are_matched_once_for_each_text() -> None:
    counter = module.Counter(Offer.of(release(policy='{"exists": "os"}')))
    counter.add(FleetRow(f"d{i}", '{"os":"linux"}', (), False) for i in range(10))
    counter.add([FleetRow("x", "{}", (), False)])
    selection = counter.result()
    assert (selection.fleet, selection.selected) == (11, 10)
