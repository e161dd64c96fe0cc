import json

from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.replay import MAX_LINE_BYTES, Lines
from services.device_agent.store.events import FilePosition

START = FilePosition(7, 0, 0)


def line(number):
    return json.dumps({"event_id": f"e{number}", "type": "a", "time_s": number}).encode() + b"\n"


def read(data, cuts=(), final=True):
    lines = Lines(START)
    chunks = []
    at = 0
    for cut in (*sorted(cuts), len(data)):
        chunks += lines.feed(data[at:cut])
        at = cut
    if final:
        chunks += lines.feed(b"", final=True)
    return chunks, lines


def test_positions_count_bytes_and_lines():
    data = line(1) + b"\n" + line(2)
    chunks, lines = read(data)
    assert [event.event_id for chunk in chunks for event in chunk.events] == ["e1", "e2"]
    assert lines.position == FilePosition(7, len(data), 3)


def test_half_a_line_waits_for_its_rest_and_moves_nothing():
    data = line(1) + b'{"type": '
    _, lines = read(data, final=False)
    assert lines.pending
    assert lines.position == FilePosition(7, len(line(1)), 1)
    (rest,) = lines.feed(b'"b", "time_s": 2}\n')
    assert [event.type for event in rest.events] == ["b"]
    assert not lines.pending


def test_a_last_line_without_its_end_is_a_line():
    chunks, _ = read(line(1) + line(2).rstrip())
    assert [event.event_id for chunk in chunks for event in chunk.events] == ["e1", "e2"]


def test_a_line_without_end_is_skipped_in_bounded_memory_and_the_next_is_read():
    long = b"x" * (3 * MAX_LINE_BYTES) + b"\n"
    data = line(1) + long + line(2)
    chunks, lines = read(data, range(0, len(data), 1000))
    assert [fault for chunk in chunks for fault in chunk.faults] == [
        f"line 2: longer than {MAX_LINE_BYTES} bytes"
    ]
    assert [event.event_id for chunk in chunks for event in chunk.events] == ["e1", "e2"]
    assert lines.position == FilePosition(7, len(data), 3)


def test_faults_name_line_column_and_cause():
    chunks, _ = read(b'{"type": "a" x}\n{"type": "a"}\n[]\n\xff\n{"type": "a", "time_s": 1, "tipe": 2}\n')
    faults = [fault for chunk in chunks for fault in chunk.faults]
    assert [fault.partition(":")[0] for fault in faults] == [
        "line 1, column 14",
        "line 2, column 1",
        "line 3, column 1",
        "line 4",
        "line 5, column 28",
    ]
    assert "time_s" in faults[1]
    assert "UTF-8" in faults[3]


blocks = st.lists(
    st.sampled_from([line(1), line(2), b"\n", b"{}\n", b"nonsense\n", b"\xff\xfe\n"])
    | st.binary(max_size=20),
    max_size=12,
)


@given(blocks, st.lists(st.integers(0, 400), max_size=6))
def test_how_a_file_is_cut_into_blocks_changes_nothing(parts, cuts):
    data = b"".join(parts)
    whole, end = read(data)
    cut, cut_end = read(data, [at for at in cuts if at <= len(data)])
    for name in ("events", "faults"):
        assert [x for c in whole for x in getattr(c, name)] == [x for c in cut for x in getattr(c, name)]
    assert cut_end.position.line == end.position.line


@given(blocks)
def test_reading_on_from_any_stored_position_gives_the_rest(parts):
    data = b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts)
    whole, _ = read(data)
    events = [event for chunk in whole for event in chunk.events]
    seen = 0
    for at, byte in enumerate(data, 1):
        if byte != ord("\n"):
            continue
        first, lines = read(data[:at], final=False)
        assert lines.position.offset == at
        rest = Lines(lines.position).feed(data[at:])
        seen = sum(len(chunk.events) for chunk in first)
        assert events[seen:] == [event for chunk in rest for event in chunk.events]


def test_each_event_has_the_place_behind_it():
    data = line(1) + b"nonsense\n\n" + line(2) + b"nonsense\n"
    (chunk,), _ = read(data, final=False)
    assert chunk.ends == [
        FilePosition(7, len(line(1)), 1),
        FilePosition(7, len(line(1)) + 10 + len(line(2)), 4),
    ]
    assert chunk.position == FilePosition(7, len(data), 5)
