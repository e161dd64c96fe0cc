"""Random bits."""

import numpy as np
import pytest

from libs.common.errors import Exhausted
from libs.runtime.host import Limits, random
from libs.runtime.kernels import DataFault


def drawn(*sizes: int, seed: int | None = None) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    integers = () if seed is None else (seed,)
    (found,) = random.bits([np.array(sizes, np.int64)], Limits(1 << 24), integers=integers)
    return np.asarray(found, np.uint32)


def _philox(key: int, counter: int) -> list[int]:
    """Philox-4x64-10 as Salmon and others print it: the four numbers of one count."""
    words, keys = [counter, 0, 0, 0], [key, 0]
    most = (1 << 64) - 1
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [(b >> 64) ^ words[1] ^ keys[0], b & most, (a >> 64) ^ words[3] ^ keys[1], a & most]
        keys = [(keys[0] + 0x9E3779B97F4A7C15) & most, (keys[1] + 0xBB67AE8584CAA73B) & most]
    return words


@pytest.mark.parametrize("seed", [0, 7, -3])
def test_a_seed_gives_what_the_algorithm_says_on_every_machine(seed: int) -> None:
    key = seed & ((1 << 64) - 1)
    wide = [word for counter in (1, 2) for word in _philox(key, counter)]
    halves = [half for word in wide for half in (word & 0xFFFFFFFF, word >> 32)]
    assert drawn(3, 5, seed=seed).reshape(-1).tolist() == halves[:15]


def test_without_a_seed_every_call_gives_others() -> None:
    assert not np.array_equal(drawn(8), drawn(8))
    assert np.array_equal(drawn(8, seed=4), drawn(8, seed=4))
    assert not np.array_equal(drawn(8, seed=4), drawn(8, seed=5))


def test_bits_are_even() -> None:
    ones = np.unpackbits(drawn(1000, 10, seed=1).view(np.uint8)).reshape(-1, 32).mean(0)
    assert np.all(np.abs(ones - 0.5) < 0.03)


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0), (1,), (7,)])
def test_any_shape(sizes: tuple[int, ...]) -> None:
    assert drawn(*sizes).shape == sizes


@pytest.mark.parametrize("sizes", [(-1,), (1 << 40, 2), (1,) * 9])
def test_shapes_that_are_none_are_told(sizes: tuple[int, ...]) -> None:
    with pytest.raises(DataFault, match="random numbers are asked for in the shape"):
        drawn(*sizes)


def test_memory_is_bounded() -> None:
    with pytest.raises(Exhausted):
        drawn(1 << 30)
