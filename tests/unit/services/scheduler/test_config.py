import pytest

from libs.common.config import ConfigError, load
from services.scheduler.config import SchedulerConfig

TRUST = "--identity-trust-dir=/trust"


def test_the_defaults_do_on_one_machine() -> None:
    config = load(SchedulerConfig, "scheduler", [TRUST], {})
    assert (config.port, config.etcd_endpoints) == (7430, ("127.0.0.1:7379",))


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--etcd-endpoints="], "name at least one member"),
        (["--etcd-endpoints=127.0.0.1:1,db:2379"], "'db:2379' is off the loopback; give --etcd-ca-file"),
        (["--deployer-target=d:7410"], "'d:7410' is off the loopback; give --deployer-ca-file"),
        (["--etcd-cert-file=/c"], "--etcd-cert-file, --etcd-key-file: give both or none"),
        (["--leader-ttl-s=0.1"], "is out of range"),
    ],
)
def test_faults_are_told(flags: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(SchedulerConfig, "scheduler", [TRUST, *flags], {})


def test_tls_lets_others_be_called() -> None:
    flags = [
        "--etcd-endpoints=db:2379",
        "--etcd-ca-file=/ca",
        "--deployer-target=d:1",
        "--deployer-ca-file=/ca",
    ]
    assert load(SchedulerConfig, "scheduler", [TRUST, *flags], {}).etcd_endpoints == ("db:2379",)
