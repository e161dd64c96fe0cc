"""High-water marks: how far each stream of each device is durable without a gap.

A mark outlives the frames it speaks of. A stream's sequence starts at 1, so a stream that nobody has seen has
mark 0.
"""

from collections.abc import Iterable, Iterator, Mapping

from services.gateway.tunnel.domain.frame import Device, Outcome, Stream

STREAMS_KEPT = 256
"""Marks kept for a device, all epochs counted. Each new life of a device's store brings up to 64 new ones,
so the marks of the last four lives at least are there; the ones that advanced longest ago go first."""


def admit(mark: int, sequence: int) -> Outcome:
    """Say what to do with `sequence` in a stream that is whole up to `mark`."""
    if sequence <= mark:
        return Outcome.DUPLICATE
    return Outcome.STORED if sequence == mark + 1 else Outcome.GAP


class Marks:
    """The marks of many devices. Not safe for threads: its owner locks.

    Which marks are forgotten depends only on the order of `advance` calls, so replaying the log in order
    gives the same marks again.
    """

    def __init__(self, kept: int = STREAMS_KEPT) -> None:
        self._kept = kept
        self._devices: dict[Device, dict[Stream, int]] = {}

    def get(self, device: Device, stream: Stream) -> int:
        """Return the stream's mark, 0 when unknown."""
        return self._devices.get(device, {}).get(stream, 0)

    def of(self, device: Device) -> Mapping[Stream, int]:
        """Return a copy of all marks of a device."""
        return dict(self._devices.get(device, {}))

    def advance(self, device: Device, stream: Stream, sequence: int) -> None:
        """Raise the stream's mark to `sequence`; it never goes back."""
        streams = self._devices.setdefault(device, {})
        streams[stream] = max(sequence, streams.pop(stream, 0))
        while len(streams) > self._kept:
            del streams[next(iter(streams))]

    def items(self) -> Iterator[tuple[Device, Iterable[tuple[Stream, int]]]]:
        """Go through all devices; a device's streams come in the order in which they advanced last."""
        for device, streams in self._devices.items():
            yield device, streams.items()

    def __len__(self) -> int:
        return sum(len(streams) for streams in self._devices.values())
