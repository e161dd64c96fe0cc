from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.deployer.domain.buckets import SHARES, bucket

salts = st.binary(min_size=16, max_size=16)
ids = st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True)


@given(salts, ids)
def test_a_bucket_is_within_bounds_and_always_the_same(salt: bytes, device: str) -> None:
    assert 0 <= bucket(salt, device) < SHARES
    assert bucket(salt, device) == bucket(salt, device)


@given(salts, st.lists(ids, unique=True), st.lists(st.integers(1, SHARES), min_size=2))
def test_a_growing_share_never_drops_a_device(salt: bytes, devices: list[str], shares: list[int]) -> None:
    held: set[str] = set()
    for share in sorted(shares):
        now = {device for device in devices if bucket(salt, device) < share}
        assert held <= now
        held = now
    assert {device for device in devices if bucket(salt, device) < SHARES} == set(devices)


def test_devices_spread_evenly() -> None:
    # Chi-square over 100 cells with 99 degrees of freedom: above 160 by chance once in 10,000 salts.
    for salt in (b"a" * 16, b"b" * 16, b"c" * 16):
        cells = Counter(bucket(salt, f"device-{i}") // 100 for i in range(20_000))
        assert sum((cells[cell] - 200) ** 2 / 200 for cell in range(100)) < 160


def test_another_salt_begins_with_other_devices() -> None:
    devices = [f"device-{i}" for i in range(10_000)]
    first = {d for d in devices if bucket(b"a" * 16, d) < 1000}
    second = {d for d in devices if bucket(b"b" * 16, d) < 1000}
    # A tenth of a tenth by chance: 100, with a standard deviation of 10.
    assert 40 < len(first & second) < 160
