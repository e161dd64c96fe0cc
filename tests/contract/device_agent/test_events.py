"""What the store keeps of events, and what features and triggers read of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.device_agent.domain.retention import Cut
from services.device_agent.store import events
from services.device_agent.testing.store import event, memory_store


def test_places_are_never_used_twice_even_when_all_events_went(connection):
    events.add_events(connection, [event(i) for i in range(5)], 0.0)
    events.set_processed_seq(connection, 5)
    assert events.cut_events(connection, Cut(float("inf"), 0, 0), 0.0)[0] == 5
    events.add_events(connection, [event(9)], 0.0)
    assert [stored.seq for stored in events.read_events(connection, 0, 10)] == [6]


def test_retention_never_takes_an_unprocessed_event_and_counts_right(connection):
    events.add_events(connection, [event(i, text="x" * i) for i in range(10)], 100.0)
    events.set_processed_seq(connection, 4)
    gone, missed = events.cut_events(connection, Cut(float("inf"), 100, 10**9), 50.0)
    assert (gone, missed) == (4, True)
    left = events.read_events(connection, 0, 100)
    assert [stored.seq for stored in left] == [5, 6, 7, 8, 9, 10]
    total = sum(row[0] for row in connection.execute("SELECT size FROM events"))
    assert events.stored_size(connection) == (6, total)


def test_a_jump_of_the_clock_takes_no_newer_event_away(connection):
    for number, received_s in enumerate((100.0, 200.0, 5.0, 210.0)):
        events.add_events(connection, [event(number)], received_s)
    events.set_processed_seq(connection, 4)
    assert events.cut_events(connection, Cut(150.0, 0, 0), 150.0) == (1, False)
    assert len(events.read_events(connection, 0, 10)) == 3


stored_events = st.lists(
    st.tuples(st.sampled_from("uv"), st.integers(0, 20), st.booleans()), min_size=1, max_size=30
)


@given(stored_events, st.integers(1, 6), st.integers(1, 20), st.data())
@settings(max_examples=60, deadline=None)
def test_a_window_is_the_newest_selected_events_of_the_user(given_events, count, size, data):
    connection = memory_store()
    items = [event(i, user, time_s, good=good) for i, (user, time_s, good) in enumerate(given_events)]
    events.add_events(connection, items, 0.0)
    last = data.draw(st.integers(1, len(items)))
    end = items[last - 1].time_s
    found = events.window(
        connection,
        user="u",
        start_s=end - size,
        end_s=end,
        last_seq=last,
        selects=lambda e: e.fields["good"] is True,
        count=count,
        max_scanned=1000,
    )
    connection.close()
    expected = [
        e for e in items[:last] if e.user == "u" and e.fields["good"] and end - size < e.time_s <= end
    ]
    newest = sorted((e.time_s for e in expected), reverse=True)[:count]
    # All of a moment come along, so that the feature can order them; none beyond is needed.
    assert sorted((e.time_s for e in found), reverse=True)[: len(newest)] == newest
    assert {e.event_id for e in found} <= {e.event_id for e in expected}
    if newest:
        assert {e.event_id for e in expected if e.time_s >= newest[-1]} <= {e.event_id for e in found}


def test_the_replay_starts_before_each_users_horizon(connection):
    items = [event(1, "u", 100), event(2, "v", 5), event(3, "u", 150), event(4, "v", 6), event(5, "u", 155)]
    events.add_events(connection, items, 0.0)
    assert events.replay_start(connection, 10.0) == 0
    events.set_processed_seq(connection, 5)
    assert events.replay_start(connection, 10.0) == 1  # v's event of time 5 is needed
    assert events.replay_start(connection, 0.0) == 3
