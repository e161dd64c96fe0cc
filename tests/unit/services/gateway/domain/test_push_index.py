from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.push_index import Change, CompactTable, Fingerprints, PushIndex

PRINTS = st.integers(0, 40).map(lambda number: number.to_bytes(16, "little"))
DIGESTS = st.binary(min_size=16, max_size=16)


@given(st.lists(st.tuples(PRINTS, st.none() | DIGESTS), max_size=300))
def test_the_table_does_what_a_dictionary_does(steps):
    table, model = CompactTable(), {}
    for fingerprint, digest in steps:
        if digest is None:
            assert table.discard(fingerprint) == (model.pop(fingerprint, None) is not None)
        else:
            table.set(fingerprint, digest)
            model[fingerprint] = digest
        assert len(table) == len(model)
    for number in range(41):
        fingerprint = number.to_bytes(16, "little")
        assert table.get(fingerprint) == model.get(fingerprint)


def test_many_entries_survive_growth_and_deletion():
    table, prints = CompactTable(), Fingerprints(b"k" * 32)
    names = [prints.of(f"d{number}") for number in range(20_000)]
    for number, fingerprint in enumerate(names):
        table.set(fingerprint, number.to_bytes(16, "big"))
    for fingerprint in names[::3]:
        assert table.discard(fingerprint)
    for number, fingerprint in enumerate(names):
        assert table.get(fingerprint) == (number.to_bytes(16, "big") if number % 3 else None)
    assert len(table) == 20_000 - len(names[::3])


def test_bytes_that_straddle_two_records_are_no_entry():
    table = CompactTable()
    # All in the one bucket of a small table; the needle lies across digest and next fingerprint.
    table.set(b"a" * 16, b"x" * 8 + b"n" * 8)
    table.set(b"n" * 8 + b"b" * 8, b"y" * 16)
    needle = b"n" * 16
    assert table.get(needle) is None
    assert not table.discard(needle)
    table.set(needle, b"z" * 16)
    assert (table.get(needle), len(table)) == (b"z" * 16, 3)


def test_an_entry_costs_little():
    table, prints = CompactTable(), Fingerprints(b"k" * 32)
    for number in range(100_000):
        table.set(prints.of(str(number)), bytes(16))
    assert table.memory_bytes < 48 * 100_000


def test_fingerprints_depend_on_the_key_and_the_name():
    one, other = Fingerprints(b"1" * 32), Fingerprints(b"2" * 32)
    assert one.of("a") == one.of("a")
    assert len({one.of("a"), one.of("b"), other.of("a"), other.of("b")}) == 4


def test_the_index_says_who_should_pull():
    prints = Fingerprints(b"k" * 32)
    index = PushIndex(prints)
    old, new, device = bytes(16), b"n" * 16, prints.of("d")
    assert not index.differs(device, old)
    index.apply(Change("d", new))
    assert index.differs(device, old)
    assert not index.differs(device, new)
    index.apply(Change("d", None))
    assert not index.differs(device, old)


def test_a_revoked_device_is_no_longer_hinted_until_it_is_back():
    prints = Fingerprints(b"k" * 32)
    index, device = PushIndex(prints), prints.of("d")
    index.apply(Change("d", b"n" * 16))
    index.apply(Change("d", None, revoked=True))
    assert (index.is_revoked(device), len(index), index.revoked_count) == (True, 0, 1)
    index.apply(Change("d", b"n" * 16))
    assert (index.is_revoked(device), index.differs(device, bytes(16))) == (False, True)
