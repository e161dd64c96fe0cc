from datetime import timedelta

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.deployer.v1 import pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.names import DeviceName
from libs.task.testing import make_manifest
from libs.trust.digests import sha256_of
from libs.trust.errors import Untrusted
from libs.trust.root import overlap
from libs.trust.signing import RoleKeys, sign, sign_message
from libs.trust.state import DEVICE_SET_TYPE, MANIFEST_TYPE, TrustedState
from libs.trust.testing import DAY, NOW, Authority, fake_key

ACME = Authority()
V1 = ACME.manifest(make_manifest("genres", "1"))
V2 = ACME.manifest(make_manifest("genres", "2"))
OTHER = ACME.manifest(make_manifest("views", "1"))


def reason(call, *arguments):
    with pytest.raises(Untrusted) as caught:
        call(*arguments)
    return caught.value.reason


def snapshot(state):
    return state.root_signed, state.device_set_payload, state.device_set, dict(state.manifests)


def changed(signed, change):
    """Return a device set with something changed, signed anew by the deployer."""
    message = pull_pb2.DeviceSet.FromString(signed.payload)
    change(message)
    return sign_message(message, [ACME.deployer])


def test_a_set_and_its_manifests_become_trusted():
    state = ACME.state()
    accepted = state.accept_device_set(ACME.device_set([V1, OTHER]))
    assert [entry.key for entry in accepted.entries.values()] == ["genres@1", "views@1"]
    assert accepted.entries["genres"].release == "tenants/acme/releases/r1"
    trusted = state.accept_manifest(V1)
    assert trusted.manifest == make_manifest("genres", "1")
    assert sha256_of(trusted.payload) == trusted.entry.manifest_digest
    assert state.manifest("genres") is trusted
    assert reason(state.manifest, "views") == "NOT_IN_SET"
    state.accept_manifest(OTHER)
    assert set(state.manifests) == {"genres", "views"}


def test_an_empty_set_removes_everything():
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1]))
    state.accept_manifest(V1)
    assert state.accept_device_set(ACME.device_set([], counter=2)).entries == {}
    assert state.manifests == {}


def test_the_same_set_again_is_accepted_and_an_older_one_is_not():
    state = ACME.state()
    first, second = ACME.device_set([V1]), ACME.device_set([V2], counter=2)
    state.accept_device_set(first)
    state.accept_device_set(first)
    state.accept_device_set(second)
    before = snapshot(state)
    assert reason(state.accept_device_set, first) == "ROLLBACK"
    assert snapshot(state) == before


def test_an_equal_counter_must_mean_the_equal_set():
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1], lifetime=2 * DAY))
    assert reason(state.accept_device_set, ACME.device_set([V2], lifetime=3 * DAY)) == "ROLLBACK"
    assert reason(state.accept_device_set, ACME.device_set([V1], lifetime=DAY)) == "ROLLBACK"
    renewed = state.accept_device_set(ACME.device_set([V1], sign_time=NOW + DAY, lifetime=2 * DAY))
    assert renewed.expire_time == NOW + 3 * DAY


def test_the_stored_set_defends_after_a_restart():
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V2], counter=7))
    restarted = ACME.state(last=state.device_set_payload)
    assert restarted.device_set.counter == 7
    assert reason(restarted.accept_device_set, ACME.device_set([V1], counter=6)) == "ROLLBACK"
    restarted.accept_device_set(ACME.device_set([V2], counter=7))
    restarted.accept_device_set(ACME.device_set([V1], counter=8))


def test_an_expired_set_installs_nothing_and_keeps_the_last_good():
    state = ACME.state()
    good = state.accept_device_set(ACME.device_set([V1], lifetime=10 * DAY))
    later = ACME.state(now=NOW + 2 * DAY, last=state.device_set_payload)
    assert reason(later.accept_device_set, ACME.device_set([V2], counter=2, lifetime=2 * DAY)) == "EXPIRED"
    assert later.device_set == good
    frozen = ACME.state(now=NOW + 10 * DAY, last=state.device_set_payload)
    assert frozen.device_set == good
    assert reason(frozen.accept_manifest, V1) == "NOT_IN_SET"
    assert reason(frozen.accept_device_set, ACME.device_set([V1], lifetime=10 * DAY)) == "EXPIRED"
    just_in_time = ACME.state(now=NOW + 10 * DAY - timedelta(microseconds=1))
    just_in_time.accept_device_set(ACME.device_set([V1], lifetime=10 * DAY))


def test_another_devices_or_tenants_set_is_refused():
    state = ACME.state("d1")
    assert reason(state.accept_device_set, ACME.device_set([V1], device="d2")) == "WRONG_DEVICE"
    foreign = changed(ACME.device_set([V1]), lambda m: setattr(m, "tenant", "globex"))
    assert reason(state.accept_device_set, foreign) == "WRONG_TENANT"
    stored = ACME.device_set([V1], device="d2").payload
    assert reason(lambda: ACME.state("d1", last=stored)) == "WRONG_DEVICE"


def test_a_root_of_another_tenant_is_not_pinned():
    def pin():
        TrustedState(ACME.signed_root, DeviceName("globex", "d1"), NOW)

    assert reason(pin) == "WRONG_TENANT"


def test_signers_keep_to_their_roles():
    state = ACME.state()
    payload = ACME.device_set([V1]).payload
    by_author = sign(DEVICE_SET_TYPE, payload, [ACME.author, fake_key("stranger"), *ACME.root_keys])
    assert reason(state.accept_device_set, by_author) == "SIGNATURE_THRESHOLD"
    by_deployer = sign(MANIFEST_TYPE, V1.payload, [ACME.deployer])
    state.accept_device_set(ACME.device_set([V1]))
    assert reason(state.accept_manifest, by_deployer) == "SIGNATURE_THRESHOLD"
    assert reason(state.accept_manifest, ACME.device_set([V1])) == "TYPE_MISMATCH"
    assert reason(state.accept_device_set, V1) == "TYPE_MISMATCH"


def test_versions_cannot_be_mixed_and_matched():
    state = ACME.state()
    assert reason(state.accept_manifest, V1) == "NOT_IN_SET"
    state.accept_device_set(ACME.device_set([V2]))
    assert reason(state.accept_manifest, V1) == "NOT_IN_SET"
    assert reason(state.accept_manifest, OTHER) == "NOT_IN_SET"
    swapped = make_manifest("genres", "2")
    swapped.trigger_json = '{"sequence": [{"event": "*"}]}'
    assert reason(state.accept_manifest, ACME.manifest(swapped)) == "NOT_IN_SET"
    state.accept_manifest(V2)


def test_a_manifest_that_leaves_the_set_is_forgotten():
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1, OTHER]))
    state.accept_manifest(V1)
    state.accept_manifest(OTHER)
    state.accept_device_set(ACME.device_set([V2, OTHER], counter=2))
    assert set(state.manifests) == {"views"}


def test_an_author_key_rotates_with_overlap():
    new = fake_key("new author")
    both = ACME.root.successor(NOW, 365 * DAY, {"author": overlap(ACME.root.author, add=[new])})
    only = both.successor(NOW, 365 * DAY, {"author": overlap(both.author, retire=[ACME.author.key_id])})
    by_new = sign_message(make_manifest("views", "2"), [new])
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1, by_new]))
    assert reason(state.accept_manifest, by_new) == "SIGNATURE_THRESHOLD"
    state.update_root(both.sign(ACME.root_keys))
    state.accept_device_set(ACME.device_set([V1, by_new]))
    state.accept_manifest(by_new)
    state.accept_manifest(V1)
    state.update_root(only.sign(ACME.root_keys))
    assert state.manifests == {}
    state.accept_device_set(ACME.device_set([V1, by_new]))
    assert reason(state.accept_manifest, V1) == "SIGNATURE_THRESHOLD"
    state.accept_manifest(by_new)


def test_a_retired_deployer_key_signs_nothing_new_but_its_counter_stays():
    new = fake_key("new deployer")
    both = ACME.root.successor(NOW, 365 * DAY, {"deployer": overlap(ACME.root.deployer, add=[new])})
    only = both.successor(NOW, 365 * DAY, {"deployer": RoleKeys.of([new.public])})
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1], counter=5))
    state.update_root(both.sign(ACME.root_keys))
    state.update_root(only.sign(ACME.root_keys))
    assert reason(state.accept_device_set, ACME.device_set([V2], counter=6)) == "SIGNATURE_THRESHOLD"
    renewed = Authority(deployer=new)
    stored = TrustedState(state.root_signed, DeviceName("acme", "d1"), NOW, state.device_set_payload)
    for each in (state, stored):
        assert reason(each.accept_device_set, renewed.device_set([V2], counter=4)) == "ROLLBACK"
        each.accept_device_set(renewed.device_set([V2], counter=6))


def test_a_stolen_deployer_key_with_a_huge_counter_is_recovered_from():
    new = fake_key("new deployer")
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1], counter=2**63))
    renewed = Authority(deployer=new)
    replaced = ACME.root.successor(NOW, 365 * DAY, {"deployer": RoleKeys.of([new.public])})
    state.update_root(replaced.sign(ACME.root_keys))
    assert (state.device_set, state.device_set_payload) == (None, None)
    assert reason(state.accept_device_set, ACME.device_set([V1], counter=2**63)) == "SIGNATURE_THRESHOLD"
    state.accept_device_set(renewed.device_set([V2], counter=1))


def test_a_set_must_be_accepted_in_this_session_and_under_this_root():
    state = ACME.state()
    state.accept_device_set(ACME.device_set([V1]))
    restarted = ACME.state(last=state.device_set_payload)
    assert reason(restarted.accept_manifest, V1) == "NOT_IN_SET"
    restarted.accept_device_set(ACME.device_set([V1]))
    restarted.accept_manifest(V1)
    restarted.update_root(ACME.root.successor(NOW, 365 * DAY).sign(ACME.root_keys))
    assert reason(restarted.accept_manifest, V1) == "NOT_IN_SET"
    restarted.accept_device_set(ACME.device_set([V1]))
    restarted.accept_manifest(V1)


def test_a_device_that_slept_catches_up_over_expired_roots():
    second = ACME.root.successor(NOW, DAY)
    third = second.successor(NOW + 400 * DAY, 365 * DAY)
    now = NOW + 401 * DAY
    state = ACME.state(now=now)
    fresh = ACME.device_set([V1], sign_time=now)
    assert reason(state.accept_device_set, fresh) == "ROOT_EXPIRED"
    assert reason(state.update_root, third.sign(ACME.root_keys)) == "ROOT_VERSION"
    state.update_root(second.sign(ACME.root_keys))
    assert reason(state.accept_device_set, fresh) == "ROOT_EXPIRED"
    assert reason(state.accept_manifest, V1) == "ROOT_EXPIRED"
    state.update_root(third.sign(ACME.root_keys))
    state.accept_device_set(fresh)
    state.accept_manifest(V1)


def test_a_refused_root_leaves_the_pinned_one():
    state = ACME.state()
    stranger = fake_key("stranger")
    forged = ACME.root.successor(NOW, DAY, {"root": RoleKeys.of([stranger.public])}).sign([stranger])
    before = snapshot(state)
    assert reason(state.update_root, forged) == "SIGNATURE_THRESHOLD"
    assert reason(state.update_root, ACME.signed_root) == "ROOT_VERSION"
    assert snapshot(state) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "tenant", ""),
        lambda m: setattr(m, "device", "../x"),
        lambda m: m.entries.append(m.entries[0]),
        lambda m: setattr(m.entries[0], "task", "A"),
        lambda m: setattr(m.entries[0], "version", "a/b"),
        lambda m: setattr(m.entries[0], "manifest_digest", "md5:00"),
        lambda m: setattr(m.entries[0], "release", "nowhere"),
        lambda m: setattr(m.expire_time, "seconds", 2**62),
    ],
)
def test_a_malformed_set_is_refused_whoever_signed_it(change):
    state = ACME.state()
    assert reason(state.accept_device_set, changed(ACME.device_set([V1]), change)) == "MALFORMED"
    assert state.device_set is None


def test_a_set_that_never_expires_has_expired():
    state = ACME.state()
    eternal = changed(ACME.device_set([V1]), lambda m: m.ClearField("expire_time"))
    assert reason(state.accept_device_set, eternal) == "EXPIRED"


def test_bytes_that_parse_as_nothing_are_malformed():
    state = ACME.state()
    junk = sign(DEVICE_SET_TYPE, b"\xff\xff", [ACME.deployer])
    assert reason(state.accept_device_set, junk) == "MALFORMED"
    state.accept_device_set(ACME.device_set([V1]))
    assert reason(state.accept_manifest, sign(MANIFEST_TYPE, b"\xff\xff", [ACME.author])) == "MALFORMED"


def test_the_reference_time_must_be_aware():
    with pytest.raises(ValueError, match="aware"):
        TrustedState(ACME.signed_root, DeviceName("acme", "d1"), NOW.replace(tzinfo=None))


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(["set", "manifest", "root"]))
def test_a_flipped_byte_changes_nothing_or_is_refused_whole(at, flip, what):
    state = ACME.state()
    good_set = ACME.device_set([V1])
    if what == "manifest":
        state.accept_device_set(good_set)
    good, accept = {
        "set": (good_set, state.accept_device_set),
        "manifest": (V1, state.accept_manifest),
        "root": (ACME.root.successor(NOW, 365 * DAY).sign(ACME.root_keys), state.update_root),
    }[what]
    data = bytearray(good.SerializeToString())
    data[at % len(data)] ^= flip
    signed = trust_pb2.Signed()
    try:
        signed.ParseFromString(bytes(data))
    except DecodeError:
        return
    before = snapshot(state)
    try:
        accept(signed)
    except Untrusted:
        assert snapshot(state) == before
    else:
        assert signed.payload == good.payload
