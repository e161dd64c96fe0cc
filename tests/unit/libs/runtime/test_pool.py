"""Lending bindings: which are kept, which go first, and the bound on memory."""

import pytest

from libs.common.errors import Exhausted
from libs.runtime.bind import Binding
from libs.runtime.layout import Layout, lay_out
from libs.runtime.pool import BindingPool
from libs.runtime.testing import PlanBuilder


class _Pool:
    """A pool over a plan whose memory is 64 bytes for each 16 of its batch, and what it has made."""

    def __init__(self, *, max_bytes: int, max_kept: int) -> None:
        builder = PlanBuilder()
        builder.output("y", builder.input("x", [builder.dimension("batch", 1, 1024)]))
        self._plan = builder.build()
        self.made: list[tuple[int, ...]] = []
        self.fail = False
        self.pool = BindingPool(
            lambda sizes: lay_out(self._plan, sizes), self._make, max_bytes=max_bytes, max_kept=max_kept
        )

    def _make(self, _: object, layout: Layout) -> Binding:
        if self.fail:
            raise MemoryError
        self.made.append(layout.sizes)
        return Binding(self._plan, layout)

    def use(self, size: int) -> None:
        with self.pool.lend((size,)):
            pass


def test_a_kept_binding_serves_the_next_call_of_its_size() -> None:
    pool = _Pool(max_bytes=10_000, max_kept=2)
    for size in (16, 16, 32, 16, 32):
        pool.use(size)
    assert pool.made == [(16,), (32,)]


def test_the_one_unused_longest_goes_first() -> None:
    pool = _Pool(max_bytes=10_000, max_kept=2)
    for size in (16, 32, 16, 48, 16, 32):
        pool.use(size)
    assert pool.made == [(16,), (32,), (48,), (32,)]


def test_kept_ones_make_room_and_busy_ones_dont() -> None:
    pool = _Pool(max_bytes=3 * 64 + 64, max_kept=8)
    pool.use(16)
    pool.use(32)  # 3 lines with its alignment: the first must go
    assert pool.pool.bytes == 3 * 64
    with pool.pool.lend((32,)), pytest.raises(Exhausted, match="192 bytes of 256 bytes are in use") as caught:
        pool.use(16)
    assert caught.value.reason == "TOO_MUCH_MEMORY"
    pool.use(16)
    assert pool.pool.bytes == 2 * 64


def test_two_at_once_of_one_size_are_two_bindings() -> None:
    pool = _Pool(max_bytes=10_000, max_kept=8)
    with pool.pool.lend((16,)) as one, pool.pool.lend((16,)) as other:
        assert one is not other
    assert pool.made == [(16,), (16,)]
    assert pool.pool.bytes == one.bytes + other.bytes


def test_a_binding_that_cant_be_made_takes_no_memory() -> None:
    pool = _Pool(max_bytes=10_000, max_kept=8)
    pool.fail = True
    with pytest.raises(MemoryError):
        pool.use(16)
    assert pool.pool.bytes == 0
