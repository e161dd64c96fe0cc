"""How much room the agent says it has: what pacing goes by."""

import pytest

from services.device_agent.ingest import MAX_BATCH
from services.device_agent.status import Stored


@pytest.mark.parametrize(
    ("pending_events", "pending_runs", "limits", "room"),
    [
        (0, {}, {}, MAX_BATCH),
        (3, {}, {}, 0),
        (0, {}, {"a": 64}, 32),
        (0, {"a": 30}, {"a": 64}, 2),
        (0, {"a": 64}, {"a": 64}, 0),
        (0, {"a": 1, "b": 2}, {"a": 64, "b": 8}, 2),
        (0, {}, {"a": 1}, 1),
        (0, {"a": 1}, {"a": 1}, 0),
        (0, {"gone": 500}, {"a": 64}, 32),
    ],
)
def test_room_is_what_the_fullest_task_has_left(
    pending_events: int, pending_runs: dict[str, int], limits: dict[str, int], room: int
) -> None:
    assert Stored([], {}, pending_events, pending_runs).event_room(limits) == room
