from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.errors import Unauthenticated
from libs.common.testing import START
from services.gateway.domain.devices import TOKEN_TYPE, verify_credential, verify_token
from services.gateway.testing import make_device

DEPLOYER = Ed25519PrivateKey.generate()
DEVICE = make_device("tenants/acme/devices/d", DEPLOYER)
NOW = START.timestamp()
ORDINARY = DEVICE.credential(START)


def refused(verify, *arguments):
    with pytest.raises(Unauthenticated) as caught:
        verify(*arguments)
    return caught.value.reason, caught.value.message


def test_a_credential_names_the_device_and_its_key():
    credential = verify_credential(ORDINARY, DEPLOYER.public_key(), NOW)
    assert str(credential.device) == DEVICE.name
    assert credential.public_key == DEVICE.key.public_key()
    assert credential.expire_s == NOW + timedelta(days=30).total_seconds()


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "tenants/acme"},
        {"sub": 7},
        {"sub": None},
        {"cnf": None},
        {"cnf": {}},
        {"cnf": {"x": "AAAA"}},
        {"cnf": {"x": 7}},
        {"cnf": ["x"]},
        {"iss": "gateway"},
        {"tenant": "other"},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": -1},
        {"exp": 1e300},
        {"iat": float("nan")},
        {"iat": [1]},
    ],
    ids=str,
)
def test_a_credential_that_says_it_wrongly_is_malformed(claims):
    reason, _ = refused(verify_credential, DEVICE.credential(START, **claims), DEPLOYER.public_key(), NOW)
    assert reason == "MALFORMED_TOKEN"


def test_only_the_deployers_signature_counts():
    other = Ed25519PrivateKey.generate().public_key()
    assert refused(verify_credential, ORDINARY, other, NOW)[0] == "BAD_SIGNATURE"
    # The device's own token isn't a credential, whoever signed it.
    token = jwt.encode({"iat": NOW, "exp": NOW + 9}, DEPLOYER, "EdDSA", headers={"typ": TOKEN_TYPE})
    assert refused(verify_credential, token, DEPLOYER.public_key(), NOW)[0] == "MALFORMED_TOKEN"


@pytest.mark.parametrize(
    "text", ["", "a.b.c", "é.é.é", "." * 5000, "x" * 5000, "e30.e30.", "bnVsbA.bnVsbA.AA"]
)
def test_what_is_no_token_is_malformed(text):
    assert refused(verify_credential, text, DEPLOYER.public_key(), NOW)[0] == "MALFORMED_TOKEN"


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_other_algorithms_are_refused(algorithm):
    key = "" if algorithm == "none" else "k" * 32
    token = jwt.encode({"iat": NOW, "exp": NOW + 9}, key, algorithm, headers={"typ": TOKEN_TYPE})
    assert refused(verify_credential, token, DEPLOYER.public_key(), NOW)[0] == "MALFORMED_TOKEN"


CREDENTIAL = verify_credential(ORDINARY, DEPLOYER.public_key(), NOW)


@pytest.mark.parametrize(
    ("late_s", "reason"),
    [(-61, "CLOCK_SKEW"), (-60, None), (0, None), (359, None), (360, "EXPIRED"), (1e6, "EXPIRED")],
)
def test_a_token_is_good_for_its_minutes_and_a_leeway(late_s, reason):
    token = DEVICE.token(START)
    if reason is None:
        assert verify_token(token, CREDENTIAL, NOW + late_s) == NOW + 300
    else:
        given, message = refused(verify_token, token, CREDENTIAL, NOW + late_s)
        assert given == reason
        assert f"{NOW + late_s:.0f}" in message  # the server's time, so that people see who is wrong


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "deployer"}, "WRONG_AUDIENCE"),
        ({"aud": ["gateway"]}, "WRONG_AUDIENCE"),
        ({"sub": "tenants/acme/devices/e"}, "WRONG_SUBJECT"),
        ({"sub": None}, "MALFORMED_TOKEN"),
        ({"exp": NOW + 301}, "TOKEN_TOO_LONG"),
    ],
    ids=str,
)
def test_a_token_is_for_this_door_and_this_device(claims, reason):
    assert refused(verify_token, DEVICE.token(START, **claims), CREDENTIAL, NOW)[0] == reason


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.123456789, 0.999999])
def test_five_minutes_are_five_minutes_whatever_the_fraction(fraction):
    token = DEVICE.token(START, iat=NOW + fraction, exp=NOW + fraction + 300.0)
    assert verify_token(token, CREDENTIAL, NOW) == NOW + fraction + 300.0
