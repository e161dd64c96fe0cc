import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.profile import parse_profile_header, profile_digest, profile_header
from libs.task.testing import attempt

entries = st.builds(
    lambda name, version: f"{name}@{version}",
    st.from_regex(r"[a-z0-9-]{1,10}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9._-]{1,10}", fullmatch=True).filter(lambda v: v not in (".", "..")),
)


def test_the_digest_is_the_contracts():
    expected = hashlib.sha256(b"b@1\nb-c@1.0\n").digest()[:16]
    lines = sorted([b"b@1\n", b"b-c@1.0\n"])
    assert profile_digest(["b@1", "b-c@1.0"]) == hashlib.sha256(b"".join(lines)).digest()[:16]
    assert profile_digest(["b@1", "b-c@1.0"]) != expected  # '-' sorts before '@'
    assert profile_digest([]) == hashlib.sha256(b"").digest()[:16]


@given(st.lists(entries, unique=True), st.randoms(use_true_random=False))
def test_the_order_never_matters(versions, rng):
    shuffled = list(versions)
    rng.shuffle(shuffled)
    assert profile_digest(versions) == profile_digest(shuffled)


@given(st.binary(min_size=16, max_size=16))
def test_headers_make_the_round_trip(digest):
    header = profile_header(digest)
    assert header == base64.urlsafe_b64encode(digest).decode()[:22]
    assert parse_profile_header(header) == digest
    assert parse_profile_header(header.encode()) == digest


@given(st.text() | st.binary() | st.text("AQgw_-+/=", min_size=21, max_size=24))
def test_any_other_header_is_invalid(value):
    digest, error = attempt(parse_profile_header, value)
    if error is not None:
        assert error.message.startswith("x-isthmus-profile must be 16 bytes")
    else:
        assert profile_header(digest).encode() == (value if isinstance(value, bytes) else value.encode())


def test_a_header_has_one_text_only():
    header = profile_header(bytes(16))
    with pytest.raises(Invalid):
        parse_profile_header(header[:-1] + "B")  # bits beyond the 16 bytes
    with pytest.raises(Invalid):
        parse_profile_header(header + "==")
    with pytest.raises(Invalid, match="has 16 bytes, not 15"):
        profile_header(bytes(15))


@pytest.mark.parametrize("entry", ["a", "A@1", "a@", "@1", "a@1\n", "a@b@c", "a@.."])
def test_malformed_entries_are_refused(entry):
    with pytest.raises(Invalid):
        profile_digest([entry])


def test_an_entry_named_twice_is_refused():
    with pytest.raises(Invalid, match="names a@1 twice"):
        profile_digest(["a@1", "b@1", "a@1"])
