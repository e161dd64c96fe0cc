"""Streams and their frames: numbered without a gap, deleted when the cloud has them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.device_agent.store import frames, values
from services.device_agent.testing.store import memory_store


def test_acks_delete_what_the_cloud_has_and_nothing_else(connection):
    frames.ensure_streams(connection, {"t/out": b"a" * 16, "t/b": b"b" * 16})
    for number in range(5):
        frames.add_frame(connection, "t/out", "s", 1.0, b"x" * number, "" if number != 1 else "REFUSED")
    assert frames.ack_frames(connection, "t/out", b"a" * 16, 3)
    assert frames.ack_frames(connection, "t/out", b"a" * 16, 2)  # late
    assert not frames.ack_frames(connection, "t/out", b"z" * 16, 4)
    assert not frames.ack_frames(connection, "t/out", b"a" * 16, 6)
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 0, 10, 100)] == [4, 5]
    counters = values.read_counters(connection)
    assert (counters["acked_frame_count"], counters["live_frames"], counters["live_bytes"]) == (2, 2, 7)
    assert frames.list_streams(connection)[1].acked == 3


def test_a_batch_of_frames_has_its_size_and_at_least_one(connection):
    frames.ensure_streams(connection, {"t/out": b"a" * 16})
    for _ in range(4):
        frames.add_frame(connection, "t/out", "s", 1.0, b"x" * 100)
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 0, 10, 250)] == [1, 2]
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 2, 10, 1)] == [3]
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 0, 3, 10**6)] == [1, 2, 3]


@given(st.lists(st.sampled_from(["a", "b", "drop", "ack", "restart", "renumber"]), max_size=25))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_sequences_stay_whole_and_counts_true(steps):
    connection = memory_store()
    frames.ensure_streams(connection, {"a": b"a" * 16, "b": b"b" * 16})
    for number, step in enumerate(steps):
        if step in "ab":
            frames.add_frame(connection, step, "s", 1.0, b"xy")
        elif step == "drop":
            frames.drop_oldest(connection, 2, 10**6)
        elif step == "ack":
            stream = frames.list_streams(connection)[0]
            frames.ack_frames(connection, "a", stream.epoch, stream.acked + 1)
        elif step == "restart":
            frames.restart_streams(connection, 3, [bytes([number, i]) * 8 for i in range(2)])
        else:
            (stream, _) = frames.list_streams(connection)
            assert frames.renumber_stream(connection, "a", stream.epoch, bytes([number]) * 16)
            assert not frames.renumber_stream(connection, "a", stream.epoch, b"z" * 16)
        live = 0
        for stream in frames.list_streams(connection):
            waiting = frames.read_frames(connection, stream.stream, 0, 100, 10**6)
            assert [f.sequence for f in waiting] == list(
                range(stream.acked + 1, stream.acked + 1 + len(waiting))
            )
            live += sum(not f.tombstone for f in waiting)
        counters = values.read_counters(connection)
        assert (counters.get("live_frames", 0), counters.get("live_bytes", 0)) == (live, 2 * live)
    connection.close()
