import pytest

from services.gateway.tunnel.domain.frame import Device, Stream
from services.gateway.tunnel.domain.marks import Marks
from services.gateway.tunnel.store import checkpoint


def test_marks_survive_their_file_in_order() -> None:
    marks = Marks()
    for number in (5, 3, 5, 9):
        marks.advance(Device("acme", f"d{number % 2}"), Stream("größe/s", bytes([number] * 16)), number)
    data = checkpoint.encode(marks, 1234)
    again, offset = checkpoint.decode(data)
    assert offset == 1234
    assert [(device, list(rows)) for device, rows in again.items()] == [
        (device, list(rows)) for device, rows in marks.items()
    ]


def test_damaged_marks_are_refused() -> None:
    marks = Marks()
    marks.advance(Device("acme", "d"), Stream("t/s", bytes(16)), 1)
    data = checkpoint.encode(marks, 1)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 0x80
        for broken in (bytes(bad), data[:at]):
            with pytest.raises(ValueError, match="checksum"):
                checkpoint.decode(broken)
