import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.testing import FakeClock
from services.device_agent.identity import CloudClock, Credential, DeviceKey

DEVICE = "tenants/acme/devices/d1"


def test_the_clouds_time_goes_on_between_answers_whatever_the_wall_clock_does():
    clock = FakeClock()
    cloud = CloudClock(clock)
    assert cloud.now() == clock.now()
    assert cloud.offset_s == 0.0
    server_s = clock.now().timestamp() + 500
    clock.advance(2)
    cloud.learn(server_s, 0.0, 2.0)  # told half-way
    assert cloud.now_s() == server_s + 1
    clock.advance(10)
    clock.step(-86400)
    assert cloud.now_s() == server_s + 11
    assert cloud.offset_s == server_s + 11 - clock.now().timestamp()


def test_a_known_offset_counts_before_the_first_answer():
    clock = FakeClock()
    assert CloudClock(clock, 30.0).now_s() == clock.now().timestamp() + 30.0


def test_a_token_is_used_until_a_minute_before_its_end_and_for_one_device():
    key = DeviceKey(Ed25519PrivateKey.generate())
    token = key.token(DEVICE, 1000.0)
    assert key.token(DEVICE, 1239.0) == token
    later = key.token(DEVICE, 1241.0)
    assert later != token
    assert key.token("tenants/acme/devices/d2", 1241.0) != later
    # A corrected clock: what looks minted in the future would be refused.
    assert key.token(DEVICE, 500.0) != later


def test_a_token_says_who_for_whom_and_how_long():
    private = Ed25519PrivateKey.generate()
    key = DeviceKey(private)
    token = key.token(DEVICE, 1000.7)
    claims = jwt.decode(
        token, private.public_key(), ["EdDSA"], audience="gateway", options={"verify_exp": False}
    )
    assert claims == {"sub": DEVICE, "aud": "gateway", "iat": 1000, "exp": 1300}
    assert jwt.get_unverified_header(token)["typ"] == "isthmus-device+jwt"
    key.forget_token()
    assert key.token(DEVICE, 1002.0) != token


def test_a_credential_is_renewed_at_half_of_its_life():
    credential = Credential(DEVICE, "jwt", 1000.0, 3000.0)
    assert credential.renew_s == 2000.0
    assert Credential.from_json(credential.to_json()) == credential
    assert str(credential.name) == DEVICE
