import pytest

from libs.common.sizes import size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1_600_000, "1.526 MiB"),
        (512 * 2**20, "512 MiB"),
        (2**40 * 4, "4 TiB"),
        (1023 * 2**20, "1,023 MiB"),
    ],
)
def test_a_size_is_told_in_the_unit_that_suits_it(count: int, text: str) -> None:
    assert size_text(count) == text
