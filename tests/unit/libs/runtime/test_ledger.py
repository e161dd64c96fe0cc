"""What a call holds, counted while it is there."""

import numpy as np
import pytest

from libs.common.errors import Exhausted
from libs.runtime.bind import Binding
from libs.runtime.layout import lay_out
from libs.runtime.ledger import Items, Ledger, bytes_of
from libs.runtime.pool import BindingPool
from libs.runtime.testing import identity_plan

ENTRY = 400


def pool(max_bytes: int = 10_000) -> BindingPool:
    plan = identity_plan()
    return BindingPool(
        lambda sizes: lay_out(plan, sizes),
        lambda _, layout: Binding(plan, layout),
        max_bytes=max_bytes,
        max_kept=4,
    )


def test_what_nobody_refers_to_any_more_doesnt_count() -> None:
    ledger = Ledger(pool())
    first, second = np.zeros(100, np.uint8), np.zeros(10, np.uint8)
    ledger.enter(first, first.nbytes)
    ledger.enter(second, second.nbytes)
    assert ledger.bytes == 110 + 2 * ENTRY
    held = Items([first])
    del first
    assert ledger.bytes == 110 + 2 * ENTRY, "the list still has it"
    held.clear()
    assert ledger.bytes == 10 + ENTRY
    assert second.size == 10


def test_a_list_is_followed_too() -> None:
    ledger = Ledger(pool())
    items = Items([1, 2])
    ledger.enter(items, bytes_of(items))
    assert ledger.bytes == 16 + ENTRY
    del items
    assert ledger.bytes == 0


def test_memory_is_the_pools_and_goes_back_to_it() -> None:
    shared = pool(1000)
    ledger, other = Ledger(shared), Ledger(shared)
    array = np.zeros(300, np.uint8)
    ledger.enter(array, array.nbytes)
    assert shared.bytes == 300 + ENTRY
    with pytest.raises(Exhausted, match="400 bytes more; 700 bytes of 1000 bytes are in use") as caught:
        other.room(400)
    assert caught.value.reason == "TOO_MUCH_MEMORY"
    del array
    assert shared.bytes == 300 + ENTRY, "kept for what comes next"
    ledger.trim()
    assert shared.bytes == 0
    other.room(1000)
    other.close()
    assert shared.bytes == 0


def test_bindings_that_nobody_uses_make_room() -> None:
    shared = pool(1000)
    with shared.lend(tuple(dimension.minimum for dimension in identity_plan().dimensions)):
        pass
    kept = shared.bytes
    assert kept > 0
    ledger = Ledger(shared)
    ledger.room(1000)
    assert shared.bytes == 1000
    ledger.close()
    assert shared.bytes == 0


def test_nothing_is_counted_once_it_is_closed() -> None:
    ledger = Ledger(pool())
    array = np.zeros(8, np.uint8)
    ledger.enter(array, array.nbytes)
    ledger.close()
    del array
    assert ledger.bytes == 0


def test_bytes_of_strings_are_those_of_their_characters() -> None:
    texts = np.empty(2, np.object_)
    texts[:] = ["", "abcd"]
    assert bytes_of(texts) == 2 * 56 + 4
    assert bytes_of(np.zeros(3, np.int64)) == 24
