from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid
from libs.trust.errors import Untrusted
from libs.trust.keys import raw_public
from libs.trust.root import overlap, root_from_payload, verify_first_root, verify_next_root
from libs.trust.signing import RoleKeys, sign_message
from libs.trust.testing import DAY, NOW, Authority, fake_key

A, B, C = (fake_key(name) for name in "abc")


def test_a_root_makes_the_round_trip():
    root = Authority(root_keys=[A, B]).root
    assert root.root.threshold == 2
    again = root_from_payload(root.to_proto().SerializeToString())
    assert again.to_proto() == root.to_proto()
    assert (again.tenant, again.version, again.create_time, again.expire_time) == (
        "acme",
        1,
        NOW,
        NOW + 365 * DAY,
    )
    assert again.engine.keys == {}
    assert set(again.role("author").keys) == {fake_key("author").key_id}


def test_the_first_root_meets_its_own_threshold():
    authority = Authority(root_keys=[A, B])
    assert verify_first_root(authority.signed_root).version == 1
    with pytest.raises(Untrusted) as caught:
        verify_first_root(authority.root.sign([A]))
    assert caught.value.reason == "SIGNATURE_THRESHOLD"


def test_the_next_root_meets_the_old_threshold_and_its_own():
    root = Authority(root_keys=[A]).root
    successor = root.successor(NOW, DAY, {"root": RoleKeys.of([B.public, C.public], 2)})
    assert successor.version == 2
    assert verify_next_root(root, successor.sign([A, B, C])).version == 2
    for signers in ([A], [B, C], [A, B], []):
        with pytest.raises(Untrusted) as caught:
            verify_next_root(root, successor.sign(signers))
        assert caught.value.reason == "SIGNATURE_THRESHOLD"


def test_versions_grow_by_exactly_one():
    first = Authority(root_keys=[A]).root
    second = first.successor(NOW, DAY)
    third = second.successor(NOW, DAY)
    assert verify_next_root(second, third.sign([A])).version == 3
    for current, signed in ((first, third), (second, second), (third, second)):
        with pytest.raises(Untrusted) as caught:
            verify_next_root(current, signed.sign([A]))
        assert caught.value.reason == "ROOT_VERSION"


def test_another_tenants_root_is_none_of_ours():
    other = Authority(tenant="globex", root_keys=[A]).root.successor(NOW, DAY)
    with pytest.raises(Untrusted) as caught:
        verify_next_root(Authority(root_keys=[A]).root, other.sign([A]))
    assert caught.value.reason == "WRONG_TENANT"


def test_a_role_rotates_with_overlap():
    role = RoleKeys.of([A.public, B.public], 2)
    both = overlap(role, add=[C])
    assert (set(both.keys), both.threshold) == ({A.key_id, B.key_id, C.key_id}, 2)
    after = overlap(both, retire=[A.key_id])
    assert set(after.keys) == {B.key_id, C.key_id}
    with pytest.raises(Invalid, match="has no key"):
        overlap(role, retire=[C.key_id])
    with pytest.raises(Invalid, match="threshold"):
        overlap(role, retire=[A.key_id])
    with pytest.raises(Invalid, match="last key"):
        overlap(RoleKeys.of([A.public]), retire=[A.key_id])


def test_unknown_roles_are_refused():
    root = Authority().root
    with pytest.raises(Invalid, match="'auther' is no role; allowed: root, author"):
        root.successor(NOW, DAY, {"auther": RoleKeys.of([A.public])})


def changed(change):
    message = Authority(root_keys=[A]).root.to_proto()
    change(message)
    return message.SerializeToString()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "tenant", "No Such"),
        lambda m: setattr(m, "version", 0),
        lambda m: setattr(m.keys[0], "key_id", "00" * 16),
        lambda m: setattr(m.keys[0], "public_key", b"short"),
        lambda m: m.keys.append(m.keys[0]),
        lambda m: m.author.key_ids.append(m.author.key_ids[0]),
        lambda m: m.author.key_ids.append(B.key_id),
        lambda m: setattr(m.author, "threshold", 2),
        lambda m: setattr(m.author, "threshold", 0),
        lambda m: m.ClearField("author"),
        lambda m: m.ClearField("root"),
        lambda m: m.ClearField("expire_time"),
        lambda m: setattr(m.expire_time, "seconds", 2**62),
        lambda m: m.keys.extend([trust_pb2.Key()] * 65),
        lambda m: m.keys.add(key_id="x", public_key=raw_public(B.public)),
    ],
)
def test_a_malformed_root_is_untrusted(change):
    with pytest.raises(Untrusted) as caught:
        root_from_payload(changed(change))
    assert caught.value.reason == "MALFORMED"


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_mutated_roots_raise_untrusted_and_nothing_else(at, byte):
    data = bytearray(changed(lambda m: None))
    data[at % len(data)] = byte
    try:
        root = root_from_payload(bytes(data))
    except Untrusted:
        return
    assert root.expire_time > root.create_time


def test_a_root_that_signs_something_else_is_none():
    with pytest.raises(Untrusted) as caught:
        verify_first_root(sign_message(trust_pb2.Key(), [A]))
    assert caught.value.reason == "MALFORMED"


def test_expiry_is_a_moment_that_is_out_already():
    root = Authority().root
    assert root.expired(root.expire_time)
    assert not root.expired(root.expire_time - timedelta(microseconds=1))
