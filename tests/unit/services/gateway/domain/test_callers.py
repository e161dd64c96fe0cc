import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Forbidden, Unauthenticated, Unavailable
from libs.common.testing import FakeClock
from services.gateway.domain.callers import CallerAuthenticator, KeyRing, anonymous, require_device
from services.gateway.domain.hints import HintHub
from services.gateway.domain.live import LiveStreams
from services.gateway.domain.push import PushState
from services.gateway.domain.push_index import Change, Fingerprints
from services.gateway.testing import make_device, make_key

KEY, TEXT = make_key("acme", 1, ("tasks:read",))
DEPLOYER = Ed25519PrivateKey.generate()
DEVICE = make_device("tenants/acme/devices/d", DEPLOYER)


class World:
    """An authenticator with a clock, keys that can be changed, and a count of look-ups."""

    def __init__(self):
        self.clock = FakeClock()
        self.stored = {KEY.key_id: KEY}
        self.looked_up = []
        self.push = PushState(
            Fingerprints(b"k" * 32), HintHub(10), on_revoked=lambda _: None, on_replaced=lambda: None
        )
        self.push.replace(self.push.new_index())
        self.deployer_key = DEPLOYER.public_key()
        self.keys = KeyRing(self.find, self.clock, most_lookups=4)
        self.callers = CallerAuthenticator(
            keys=self.keys,
            deployer_key=lambda: self.deployer_key,
            fingerprints=self.push.fingerprints,
            admit=self.push.admit,
            clock=self.clock,
            cache_size=8,
        )

    async def find(self, key_id):
        self.looked_up.append(key_id)
        await asyncio.sleep(0)
        return self.stored.get(key_id)

    async def enter(self, text=TEXT):
        return await self.callers.authenticate(f"Bearer {text}", None)

    async def device(self, token=None, credential=None):
        now = self.clock.now()
        return await self.callers.authenticate(
            f"Device {token or DEVICE.token(now)}", credential or DEVICE.credential(now)
        )


@pytest.fixture
def world():
    return World()


async def refused(call):
    with pytest.raises(Unauthenticated) as caught:
        await call
    return caught.value.reason


async def test_a_key_is_looked_up_once_a_minute(world):
    for _ in range(5):
        assert (await world.enter()).identity.principal == KEY.name
    assert world.callers.known(f"Bearer {TEXT}", None) is not None
    world.clock.advance(61)
    assert world.callers.known(f"Bearer {TEXT}", None) is None
    await world.enter()
    assert world.looked_up == [KEY.key_id] * 2


async def test_many_at_once_share_one_look_up(world):
    await asyncio.gather(*(world.enter() for _ in range(50)))
    assert world.looked_up == [KEY.key_id]


async def test_a_caller_that_gives_up_does_not_spoil_it_for_the_others(world):
    first, second = asyncio.create_task(world.enter()), asyncio.create_task(world.enter())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).identity.tenant == "acme"


async def test_made_up_keys_are_asked_for_once_and_never_crowd_out_real_ones(world):
    made_up = make_key("acme", 9)[1]
    for _ in range(3):
        assert await refused(world.enter(made_up)) == "WRONG_KEY"
    assert len(world.looked_up) == 1
    waiting = [asyncio.create_task(world.enter(make_key("acme", number)[1])) for number in range(10, 20)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unauthenticated, Unavailable}


async def test_a_key_made_just_now_works_though_it_was_missing_before(world):
    key, text = make_key("acme", 9)
    assert await refused(world.enter(text)) == "WRONG_KEY"
    world.stored[key.key_id] = key
    world.keys.forget(key.key_id)
    assert (await world.enter(text)).identity.principal == key.name


async def test_revoking_here_works_at_once_and_elsewhere_within_a_minute(world):
    await world.enter()
    world.stored[KEY.key_id] = replace(KEY, revoke_time=world.clock.now())
    assert (await world.enter()).identity.principal == KEY.name
    world.keys.forget(KEY.key_id)
    world.callers.forget(KEY.name)
    assert await refused(world.enter()) == "REVOKED_KEY"
    world.stored[KEY.key_id] = KEY
    world.clock.advance(61)
    await world.enter()
    world.stored[KEY.key_id] = replace(KEY, revoke_time=world.clock.now())
    world.clock.advance(61)
    assert await refused(world.enter()) == "REVOKED_KEY"


async def test_a_cached_key_expires_on_time(world):
    world.stored[KEY.key_id] = replace(KEY, expire_time=world.clock.now() + timedelta(seconds=10))
    await world.enter()
    world.clock.advance(10)
    assert await refused(world.enter()) == "EXPIRED_KEY"


async def test_a_device_is_verified_once_per_token(world):
    now = world.clock.now()
    token, credential = DEVICE.token(now), DEVICE.credential(now)
    first = await world.device(token, credential)
    assert (first.identity.kind, first.identity.tenant, first.identity.principal) == (
        "device",
        "acme",
        DEVICE.name,
    )
    assert await world.device(token, credential) is first
    # Neither half opens the door with another's.
    other = make_device("tenants/acme/devices/e", DEPLOYER)
    assert await refused(world.device(token, other.credential(now))) == "BAD_SIGNATURE"
    assert await refused(world.device(other.token(now), credential)) == "BAD_SIGNATURE"


async def test_a_cached_device_token_ends_on_time(world):
    now = world.clock.now()
    token, credential = DEVICE.token(now), DEVICE.credential(now)
    for _ in range(6):
        await world.device(token, credential)
        world.clock.advance(59)
    world.clock.advance(6)  # 360 s: five minutes and the leeway
    assert await refused(world.device(token, credential)) == "EXPIRED"


async def test_a_revoked_device_stays_out_whatever_is_cached(world):
    now = world.clock.now()
    token, credential = DEVICE.token(now), DEVICE.credential(now)
    caller = await world.device(token, credential)
    world.push.apply([Change(DEVICE.name, None, revoked=True)])
    assert await refused(world.device(token, credential)) == "DEVICE_REVOKED"
    assert await refused(world.callers.recheck(caller)) == "DEVICE_REVOKED"
    assert await refused(world.device(DEVICE.token(now, jti="2"), credential)) == "DEVICE_REVOKED"


async def test_before_the_first_snapshot_no_device_comes_in_and_people_do(world):
    world.push = PushState(
        Fingerprints(b"k" * 32), HintHub(10), on_revoked=lambda _: None, on_replaced=lambda: None
    )
    world.callers = CallerAuthenticator(
        keys=world.keys,
        deployer_key=lambda: world.deployer_key,
        fingerprints=world.push.fingerprints,
        admit=world.push.admit,
        clock=world.clock,
    )
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await world.device()
        assert (caught.value.reason, caught.value.retry_after_s) == ("PUSH_INDEX_NOT_READY", 1.0)
    # Who doesn't verify is told so all the same.
    assert await refused(world.device(credential="a.b.c")) == "MALFORMED_TOKEN"
    assert (await world.enter()).identity.tenant == "acme"
    index = world.push.new_index()
    index.apply(Change("tenants/acme/devices/other", None, revoked=True))
    world.push.replace(index)
    assert (await world.device()).identity.principal == DEVICE.name


async def test_the_deployers_next_key_is_taken_within_a_minute(world):
    now = world.clock.now()
    await world.device()
    successor = Ed25519PrivateKey.generate()
    world.deployer_key = successor.public_key()
    world.clock.advance(61)
    assert await refused(world.device(credential=DEVICE.credential(now))) == "BAD_SIGNATURE"
    renewed = replace(DEVICE, deployer_key=successor)
    await world.device(credential=renewed.credential(world.clock.now()))
    world.deployer_key = None
    world.clock.advance(61)
    with pytest.raises(Unavailable):
        await world.device()


async def test_open_streams_are_rechecked(world):
    live, ended = LiveStreams(), []
    user, device = await world.enter(), await world.device()
    with live.open(user, ended.append), live.open(device, ended.append), live.open(device, ended.append):
        await live.recheck(world.callers)
        assert ended == []
        world.stored.clear()
        world.clock.advance(61)
        await live.recheck(world.callers)
        assert [error.reason for error in ended] == ["WRONG_KEY"]
        world.clock.advance(timedelta(days=30).total_seconds())
        await live.recheck(world.callers)
        await live.recheck(world.callers)  # told once
        assert [error.reason for error in ended] == ["WRONG_KEY", "EXPIRED", "EXPIRED"]
    assert len(live) == 0


async def test_a_store_that_is_away_ends_no_stream(world):
    live, ended = LiveStreams(), []
    with live.open(await world.enter(), ended.append):

        async def away(key_id):
            raise Unavailable("away")

        world.keys._find = away
        world.clock.advance(61)
        await live.recheck(world.callers)
        assert ended == []


async def test_only_devices_have_fingerprints(world):
    assert require_device(await world.device())
    for other in (await world.enter(), anonymous()):
        with pytest.raises(Forbidden):
            require_device(other)


TEXTS = st.text(max_size=60) | st.binary(max_size=60)


@settings(max_examples=300)
@given(TEXTS, st.none() | TEXTS)
async def test_whatever_comes_is_refused_politely(authorization, credential):
    assert await refused(World().callers.authenticate(authorization, credential))


@settings(max_examples=300)
@given(
    st.sampled_from(["token", "credential"]),
    st.integers(0, 10_000),
    st.characters(min_codepoint=33, max_codepoint=126) | st.just(""),
)
async def test_a_changed_byte_never_gets_in(which, position, replacement):
    world = World()
    now = world.clock.now()
    proofs = {"token": DEVICE.token(now), "credential": DEVICE.credential(now)}
    text = proofs[which]
    position %= len(text)
    changed = text[:position] + replacement + text[position + 1 :]
    if changed == text:
        return
    proofs[which] = changed
    try:
        caller = await world.device(**proofs)
    except Unauthenticated:
        return
    # base64url's last character has bits that don't count: the same token, spelt differently.
    assert caller.identity.principal == DEVICE.name
    assert position in {index - 1 for index in (*(i for i, c in enumerate(text) if c == "."), len(text))}
