import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid
from libs.trust.errors import Untrusted
from libs.trust.signing import RoleKeys, add_signatures, sign, sign_message, signed_bytes, verify
from libs.trust.testing import fake_key

A, B, C = (fake_key(name) for name in "abc")
TYPE = "isthmus.test.v1.Thing"


def refused(signed, role, expected=TYPE):
    with pytest.raises(Untrusted) as caught:
        verify(signed, expected, role)
    return caught.value.reason


def test_what_is_signed_is_the_contracts():
    signed = sign(TYPE, b"payload", [A])
    covered = b"isthmus-signature-v1\0isthmus.test.v1.Thing\0payload"
    assert signed_bytes(TYPE, b"payload") == covered
    A.public.verify(signed.signatures[0].value, covered)
    assert signed.signatures[0].key_id == A.key_id
    assert verify(signed, TYPE, RoleKeys.of([A.public])) == b"payload"


def test_a_threshold_counts_distinct_keys():
    role = RoleKeys.of([A.public, B.public, C.public], 2)
    assert verify(sign(TYPE, b"x", [A, C]), TYPE, role) == b"x"
    one = sign(TYPE, b"x", [A])
    assert refused(one, role) == "SIGNATURE_THRESHOLD"
    one.signatures.extend([one.signatures[0]] * 3)
    assert refused(one, role) == "SIGNATURE_THRESHOLD"
    assert verify(add_signatures(one, [B]), TYPE, role) == b"x"


def test_a_signature_under_another_keys_id_does_not_count():
    role = RoleKeys.of([A.public, B.public], 2)
    signed = sign(TYPE, b"x", [A, A])
    assert len(signed.signatures) == 1
    signed.signatures.add(key_id=B.key_id, value=signed.signatures[0].value)
    assert refused(signed, role) == "SIGNATURE_THRESHOLD"


def test_a_bad_signature_does_not_spoil_good_ones():
    signed = trust_pb2.Signed(type=TYPE, payload=b"x")
    signed.signatures.add(key_id=A.key_id, value=bytes(64))
    signed.signatures.add(key_id=B.key_id, value=b"short")
    signed.signatures.extend(sign(TYPE, b"x", [A]).signatures)
    assert verify(signed, TYPE, RoleKeys.of([A.public, B.public])) == b"x"


def test_a_signature_over_one_type_is_none_over_another():
    signed = sign(TYPE, b"x", [A])
    role = RoleKeys.of([A.public])
    assert refused(signed, role, "isthmus.test.v1.Other") == "TYPE_MISMATCH"
    signed.type = "isthmus.test.v1.Other"
    assert refused(signed, role, "isthmus.test.v1.Other") == "SIGNATURE_THRESHOLD"


def test_a_boundary_between_type_and_payload_cannot_be_moved():
    with pytest.raises(Invalid, match="can't be signed"):
        sign("a\0b", b"c", [A])
    with pytest.raises(Invalid, match="can't be signed"):
        sign("", b"c", [A])


def test_an_empty_role_trusts_nothing():
    assert refused(sign(TYPE, b"x", [A]), RoleKeys({}, 0)) == "SIGNATURE_THRESHOLD"
    assert refused(trust_pb2.Signed(type=TYPE), RoleKeys({}, 0)) == "SIGNATURE_THRESHOLD"


@pytest.mark.parametrize("threshold", [0, -1, 3])
def test_a_threshold_must_be_reachable(threshold):
    with pytest.raises(Invalid, match="threshold must be from 1 to its 2 keys"):
        RoleKeys.of([A.public, B.public, A.public], threshold)


def test_sizes_are_bounded_before_any_work():
    with pytest.raises(Invalid) as caught:
        sign(TYPE, bytes(1024 * 1024 + 1), [A])
    assert caught.value.reason == "TOO_LARGE"
    role = RoleKeys.of([A.public])
    many = trust_pb2.Signed(type=TYPE, payload=b"x")
    many.signatures.extend([trust_pb2.Signature(key_id=A.key_id, value=bytes(64))] * 65)
    assert refused(many, role) == "MALFORMED"
    assert refused(trust_pb2.Signed(type=TYPE, payload=bytes(1024 * 1024 + 1)), role) == "MALFORMED"


def test_a_message_is_signed_under_its_full_name():
    signed = sign_message(trust_pb2.Key(key_id="x"), [A])
    assert signed.type == "isthmus.trust.v1.Key"
    assert (
        trust_pb2.Key.FromString(verify(signed, "isthmus.trust.v1.Key", RoleKeys.of([A.public]))).key_id
        == "x"
    )


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_flipped_byte_is_noticed(at, flip):
    good = sign(TYPE, b"some payload", [A])
    data = bytearray(good.SerializeToString())
    data[at % len(data)] ^= flip
    signed = trust_pb2.Signed()
    try:
        signed.ParseFromString(bytes(data))
    except DecodeError:
        return
    try:
        payload = verify(signed, TYPE, RoleKeys.of([A.public]))
    except Untrusted:
        return
    # What still verifies differs only where nothing is covered, as in an unknown field.
    assert payload == b"some payload"
