import re

from libs.common.rand import Randomness, SystemRandomness
from libs.common.testing import FakeRandomness


def test_both_sources_keep_the_promised_shapes() -> None:
    for source in (SystemRandomness(), FakeRandomness()):
        randomness: Randomness = source
        assert len(randomness.bytes(32)) == 32
        assert 1.0 <= randomness.uniform(1.0, 2.0) <= 2.0
        assert re.fullmatch("[a-z0-9]{16}", randomness.id())
        assert re.fullmatch("[a-z0-9]{5}", randomness.id(5))


def test_the_same_seed_repeats_and_the_system_does_not() -> None:
    assert FakeRandomness(7).id() == FakeRandomness(7).id() != FakeRandomness(8).id()
    assert SystemRandomness().bytes(16) != SystemRandomness().bytes(16)
