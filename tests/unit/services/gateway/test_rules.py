"""Access rules, settings and conversions."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from libs.common.access import SCOPES
from libs.common.config import ConfigError, load
from libs.common.errors import Invalid
from services.gateway.access import ACCESS, ANONYMOUS, DoorAccess
from services.gateway.admin_key import main as admin_key
from services.gateway.config import GatewayConfig
from services.gateway.convert import to_key, to_profile_digest, to_tenant, to_timedelta, to_timestamp
from services.gateway.descriptors import all_methods
from services.gateway.domain.keys import Key, Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_method_of_the_gateway_has_a_rule_and_every_rule_a_method():
    own = {method.path for method in all_methods() if method.upstream == "gateway"}
    assert own == {path for path in ACCESS if path.startswith("/isthmus.")}
    assert {rule.scope for rule in ACCESS.values()} <= SCOPES | {""}


def test_every_routed_method_asks_for_somebody_known_but_enrolment():
    methods = [method for method in all_methods() if method.upstream == "deployer"]
    rules = DoorAccess(methods)
    assert {method.path for method in methods if rules[method.path].public} == ANONYMOUS
    assert all(
        rules[method.path].kinds == {"user", "device"} for method in methods if method.path not in ANONYMOUS
    )
    assert set(rules) >= set(ACCESS)
    assert len(rules) == len(ACCESS) + len(methods)


def test_the_descriptor_set_is_whole():
    services = {method.service for method in all_methods()}
    protos = Path(__file__).parents[4] / "protos"
    declared = {
        line.split()[1]
        for path in protos.rglob("*.proto")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("service ")
    }
    assert {service.rpartition(".")[2] for service in services} == declared


NEEDED = ("--identity-key-file=k", "--identity-trust-dir=t")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((*NEEDED, "--upstreams=deployer"), "NAME=HOST:PORT"),
        ((*NEEDED, "--upstreams==x:1"), "NAME=HOST:PORT"),
        ((*NEEDED, "--upstreams=a=x:1,a=y:1"), "twice"),
        (NEEDED[1:], "--identity-key-file"),
        (NEEDED[:1], "--identity-trust-dir"),
        ((*NEEDED, "--upstream-cert-file=c"), "both or none"),
        ((*NEEDED, "--host=0.0.0.0"), "--tls-cert-file"),
    ],
)
def test_a_wrong_setting_is_told_once(flags, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        load(GatewayConfig, "gateway", flags, {})
    assert len(caught.value.faults) == 1


def test_good_settings_have_no_faults():
    config = load(GatewayConfig, "gateway", NEEDED, {"ISTHMUS_GATEWAY_UPSTREAMS": "a=x:1,b=y:2"})
    assert config.targets() == [("a", "x:1"), ("b", "y:2")]
    with_tls = (*NEEDED, "--host=0.0.0.0", "--tls-cert-file=c", "--tls-key-file=k")
    assert load(GatewayConfig, "gateway", with_tls, {})  # people come without certificates


def test_admin_key_runs_in_the_environment_of_a_gateway(tmp_path, capsys):
    environ = {
        "ISTHMUS_GATEWAY_DATABASE_URL": f"sqlite:///{tmp_path}/g.db",
        "ISTHMUS_GATEWAY_PORT": "7400",
        "ISTHMUS_GATEWAY_UPSTREAMS": "deployer=x:1",
    }
    assert admin_key((f"--out={tmp_path}/admin.key",), environ) == 0
    text = (tmp_path / "admin.key").read_text().strip()
    assert text.startswith("isk_")
    assert text not in capsys.readouterr().out
    assert admin_key(("--tenant=Not An Id", f"--out={tmp_path}/other.key"), environ) == 1
    assert "tenant" in capsys.readouterr().err
    assert admin_key(("--outt=x",), environ) == 2
    assert "did you mean '--out'?" in capsys.readouterr().err


TIMES = st.integers(0, 2**48).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))


@given(TIMES)
def test_times_travel_to_the_microsecond(time):
    assert to_timestamp(time).ToDatetime(UTC) == time


@given(st.text(max_size=50), TIMES, st.none() | TIMES, st.sets(st.sampled_from(sorted(SCOPES)), min_size=1))
def test_a_key_travels_without_its_secret(display_name, create_time, expire_time, scopes):
    key = Key("k" * 16, "acme", display_name, frozenset(scopes), b"\7" * 32, create_time, expire_time, None)
    message = to_key(key)
    assert (message.name, message.display_name, list(message.scopes)) == (
        key.name,
        display_name,
        sorted(scopes),
    )
    assert message.create_time.ToDatetime(UTC) == create_time
    assert message.HasField("expire_time") == (expire_time is not None)
    assert not message.revoked
    assert b"\7" * 8 not in message.SerializeToString()


def test_a_tenant_travels():
    message = to_tenant(Tenant("acme", "Acme", NOW))
    assert (message.name, message.display_name, message.create_time.ToDatetime(UTC)) == (
        "tenants/acme",
        "Acme",
        NOW,
    )


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_duration_is_one_or_invalid(seconds, nanos):
    duration = Duration(seconds=seconds, nanos=nanos)
    try:
        found = to_timedelta(duration, "ttl")
    except Invalid as error:
        found = error
    assert isinstance(found, timedelta) or found.message.startswith("ttl: ")


def test_a_digest_has_16_bytes():
    assert to_profile_digest(bytes(16)) == bytes(16)
    for wrong in (b"", bytes(15), bytes(17)):
        with pytest.raises(Invalid, match="profile_digest"):
            to_profile_digest(wrong)
