import base64
import json
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Unauthenticated
from libs.common.identity import (
    IDENTITY_HEADER,
    Identity,
    IdentityIssuer,
    IdentityVerifier,
    acting_as,
    current_identity,
)
from libs.common.testing import START, FakeClock

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
TRUSTED = {"gateway": KEY.public_key(), "deployer": OTHER.public_key()}
ALICE = Identity("acme", "tenants/acme/keys/k1", "user", frozenset({"tasks:read", "blobs:*"}), "gateway")
NOW = START.timestamp()
CLAIMS: dict[str, Any] = {
    "iss": "gateway",
    "aud": "deployer",
    "sub": "k1",
    "tenant": "acme",
    "kind": "user",
    "scopes": [],
    "on_behalf_of": "",
    "iat": NOW,
    "exp": NOW + 60,
}
HEADERS = {"kid": "gateway", "typ": "isthmus-identity+jwt"}


def pair(clock: FakeClock, **sizes: int) -> tuple[IdentityIssuer, IdentityVerifier]:
    return IdentityIssuer("gateway", KEY, clock, **sizes), IdentityVerifier(
        "deployer", TRUSTED, clock, **sizes
    )


def signed(
    changes: dict[str, Any], headers: dict[str, Any] | None = None, key: Ed25519PrivateKey = KEY
) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not ...}
    return jwt.encode(claims, key, algorithm="EdDSA", headers=headers or HEADERS)


def verifier() -> IdentityVerifier:
    return IdentityVerifier("deployer", TRUSTED, FakeClock())


def test_an_identity_arrives_as_it_was_minted() -> None:
    issuer, checks = pair(FakeClock())
    for identity in (
        ALICE,
        Identity("acme", "tenants/acme/devices/d1", "device", frozenset(), "gateway"),
        Identity("", "anonymous", "device", frozenset(), "gateway"),
        Identity("", "gateway", "service", frozenset(), "gateway", "tenants/acme/releases/r1"),
    ):
        assert checks.verify(issuer.mint(identity, "deployer")) == identity


def test_the_issuer_is_whoever_signs_and_not_what_the_identity_claims() -> None:
    clock = FakeClock()
    forged = IdentityIssuer("deployer", OTHER, clock).mint(ALICE, "deployer")
    with pytest.raises(Unauthenticated, match="only the gateway may"):
        verifier().verify(forged)


def test_a_service_speaks_for_itself_only() -> None:
    clock = FakeClock()
    own = IdentityIssuer("deployer", OTHER, clock)
    checks = IdentityVerifier("gateway", TRUSTED, clock)
    assert checks.verify(own.mint_own("gateway", "tenants/acme/devices/d")) == Identity(
        "", "deployer", "service", frozenset(), "deployer", "tenants/acme/devices/d"
    )
    other = Identity("", "gateway", "service", frozenset(), "gateway")
    with pytest.raises(Unauthenticated, match="another service"):
        checks.verify(own.mint(other, "gateway"))


def test_a_token_is_used_again_until_half_its_life() -> None:
    clock = FakeClock()
    issuer, _ = pair(clock)
    first = issuer.mint(ALICE, "deployer")
    clock.advance(29.9)
    assert issuer.mint(ALICE, "deployer") == first
    assert issuer.mint(ALICE, "tunnel") != first
    clock.advance(0.2)
    assert issuer.mint(ALICE, "deployer") != first


def test_a_token_dies_with_its_minute_remembered_or_not() -> None:
    clock = FakeClock()
    issuer, checks = pair(clock)
    token = issuer.mint(ALICE, "deployer")
    checks.verify(token)
    clock.advance(59.0)
    assert checks.verify(token) == ALICE
    clock.advance(6.1)
    for each in (checks, IdentityVerifier("deployer", TRUSTED, clock)):
        with pytest.raises(Unauthenticated) as caught:
            each.verify(token)
        assert caught.value.reason == "IDENTITY_EXPIRED"


def test_a_token_from_the_future_is_refused_beyond_the_leeway() -> None:
    clock = FakeClock()
    issuer, _ = pair(clock)
    early = IdentityVerifier("deployer", TRUSTED, FakeClock(START - timedelta(seconds=4)))
    far = IdentityVerifier("deployer", TRUSTED, FakeClock(START - timedelta(seconds=6)))
    token = issuer.mint(ALICE, "deployer")
    assert early.verify(token) == ALICE
    with pytest.raises(Unauthenticated, match="clock"):
        far.verify(token)


def test_a_verified_token_costs_no_second_signature_check() -> None:
    class Counting(dict[str, Any]):
        asked = 0

        def get(self, name: str, default: Any = None) -> Any:
            self.asked += 1
            return super().get(name, default)

    trusted = Counting(TRUSTED)
    clock = FakeClock()
    checks = IdentityVerifier("deployer", trusted, clock, cache_size=2)
    issuer, _ = pair(clock)
    token = issuer.mint(ALICE, "deployer")
    for _ in range(3):
        checks.verify(token)
    assert trusted.asked == 1
    for n in range(2):
        checks.verify(issuer.mint(Identity("acme", f"k{n}", "user", frozenset(), "gateway"), "deployer"))
    checks.verify(token)
    assert trusted.asked == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "tunnel"},
        {"aud": ["deployer"]},
        {"aud": ...},
        {"iss": "deployer"},
        {"iss": ...},
        {"sub": ...},
        {"tenant": 7},
        {"kind": "root"},
        {"kind": ...},
        {"scopes": "*"},
        {"scopes": [1]},
        {"scopes": ...},
        {"exp": ...},
        {"iat": ...},
        {"exp": "soon"},
        {"iat": NOW, "exp": NOW + 3600},
        {"iat": NOW - 3600},
        {"iat": NOW + 50, "exp": NOW + 40},
        {"kind": "service"},
    ],
)
def test_a_claim_that_is_wrong_or_missing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated, match=IDENTITY_HEADER):
        verifier().verify(signed(changes))
    assert verifier().verify(signed({})).principal == "k1"


def test_another_key_algorithm_issuer_or_kind_of_token_is_refused() -> None:
    raw = KEY.public_key().public_bytes_raw()
    payload = base64.urlsafe_b64encode(json.dumps(CLAIMS).encode()).rstrip(b"=")
    unsigned = base64.urlsafe_b64encode(json.dumps({"alg": "none", **HEADERS}).encode()).rstrip(b"=")
    for token in (
        signed({}, key=OTHER),
        signed({}, {**HEADERS, "kid": "nobody"}),
        signed({}, {**HEADERS, "kid": "../gateway"}),
        signed({}, {**HEADERS, "typ": "isthmus-credential+jwt"}),
        signed({}, {"typ": HEADERS["typ"]}),
        jwt.encode(CLAIMS, raw, algorithm="HS256", headers=HEADERS),
        f"{unsigned.decode()}.{payload.decode()}.",
        "",
        "a.b.c",
        "x" * 100_000,
    ):
        with pytest.raises(Unauthenticated):
            verifier().verify(token)


TOKEN = IdentityIssuer("gateway", KEY, FakeClock()).mint(ALICE, "deployer")


@given(st.data())
def test_a_mutated_token_is_refused_or_says_the_same(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TOKEN) - 1))
    change = data.draw(st.sampled_from(["flip", "drop", "insert", "cut"]))
    letter = data.draw(st.characters(min_codepoint=32, max_codepoint=0x2FF))
    mutated = {
        "flip": TOKEN[:at] + letter + TOKEN[at + 1 :],
        "drop": TOKEN[:at] + TOKEN[at + 1 :],
        "insert": TOKEN[:at] + letter + TOKEN[at:],
        "cut": TOKEN[:at],
    }[change]
    try:
        assert verifier().verify(mutated) == ALICE
    except Unauthenticated:
        return
    # Only the spare bits at the end of a part of base 64 may differ.
    assert len(mutated) <= len(TOKEN) + 1


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(data.decode("latin-1"))


async def test_the_header_is_found_and_may_come_once() -> None:
    checks = verifier()
    assert await checks.authenticate("/a/b", [("user-agent", "x")]) is None
    assert await checks.authenticate("/a/b", [(IDENTITY_HEADER, TOKEN)]) == ALICE
    with pytest.raises(Unauthenticated, match="more than once"):
        await checks.authenticate("/a/b", [(IDENTITY_HEADER, TOKEN), (IDENTITY_HEADER, TOKEN)])


def test_the_current_identity_is_unknown_outside_a_call() -> None:
    with pytest.raises(Unauthenticated):
        current_identity()
    with acting_as(ALICE):
        assert current_identity() is ALICE
    with pytest.raises(Unauthenticated):
        current_identity()
