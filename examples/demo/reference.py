"""The scores of devices and cloud by other code: windows from the raw events, and ONNX Runtime."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.demo.scenario import Value
from libs.task.event import Event

TOLERANCE = 1e-4
_WINDOW_S = 30 * 86400.0
_AT_ONCE = 256

Past = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Reference:
    """Scores films as they come up."""

    model: Path
    """The device's model."""
    ranker: Path
    """The cloud's."""
    index: Mapping[str, int]
    """Films by name."""
    window: int
    """Past ratings that the device's model sees."""
    ranker_window: int
    """Past ratings that the cloud's sees."""

    def expected(self, events: Iterable[Event], wanted: Container[str]) -> dict[str, Value]:
        """Return both scores of each film by the id of the event, if wanted, that brought it up."""
        shown = [each for each in self.windows(events) if each[0] in wanted]
        if not shown:
            return {}
        item = np.array([film for _, film, _ in shown], np.int64)
        history, ratings = padded([past for _, _, past in shown], self.window)
        device = run(self.model, {"item": item, "history": history, "ratings": ratings})
        history, ratings = padded([past for _, _, past in shown], self.ranker_window)
        cloud = run(
            self.ranker,
            {
                "item": item.astype(np.uint16),
                "history": history.astype(np.uint16),
                "ratings": np.rint(2 * ratings).astype(np.uint8),
            },
        )
        return {
            event_id: {"past": len(past), "device": float(here), "cloud": float(there)}
            for (event_id, _, past), here, there in zip(shown, device, cloud, strict=True)
        }

    def windows(self, events: Iterable[Event]) -> Iterator[tuple[str, int, Past]]:
        """Yield for each film that came up: the event's id, the film, the user's past films and ratings."""
        most = max(self.window, self.ranker_window)
        for event, past in pasts(events):
            films = [
                (self.index.get(str(old.fields["item_id"]), 0), float(str(old.fields["rating"])))
                for old in past
            ]
            yield event.event_id, self.index.get(str(event.fields["item_id"]), 0), films[-most:]


def pasts(events: Iterable[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each event that brings a film on the screen, with the user's ratings of 30 days before it."""
    rated: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.type == "rate":
            rated[event.user].append(event)
        elif event.type == "page_enter":
            yield (
                event,
                [old for old in rated[event.user] if event.time_s - _WINDOW_S < old.time_s <= event.time_s],
            )


def longer_past_than(most: int) -> Callable[[Iterable[Event]], list[tuple[int, bool]]]:
    """Return what tells of each film that comes on the screen whether its past is longer than that."""

    def tell(events: Iterable[Event]) -> list[tuple[int, bool]]:
        numbered = list(events)
        position = {event.event_id: number for number, event in enumerate(numbered)}
        return [(position[event.event_id], len(past) > most) for event, past in pasts(numbered)]

    return tell


def padded(pasts: list[Past], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return films, int64 [rows, window], and ratings, float32: the latest, oldest first; then 0."""
    history = np.zeros((len(pasts), window), np.int64)
    ratings = np.zeros((len(pasts), window), np.float32)
    for row, past in enumerate(pasts):
        latest = past[-window:]
        history[row, : len(latest)] = [film for film, _ in latest]
        ratings[row, : len(latest)] = [rating for _, rating in latest]
    return history, ratings


def run(model: Path, inputs: Mapping[str, Any]) -> np.ndarray:
    """Return the output "click" of an ONNX file for all rows."""
    # Here, since only this comparison takes it; devices don't have it.
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    rows = len(next(iter(inputs.values())))
    found = [
        session.run(["click"], {name: each[at : at + _AT_ONCE] for name, each in inputs.items()})[0]
        for at in range(0, rows, _AT_ONCE)
    ]
    return np.concatenate(found)
