"""What people see of devices and releases that have failures."""

from types import SimpleNamespace

from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import device_pb2, release_pb2
from libs.cli.groups import device, release
from libs.cli.output import Output

SESSION = SimpleNamespace(output=Output())


def lines(capsys):
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_device_is_shown_with_what_failed_on_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    failure = device_pb2.VersionFailure(
        version="tenants/acme/tasks/genres/versions/1.0.0",
        release="tenants/acme/releases/r2",
        reason="EXCEPTION",
        message="pre.py, line 3\n  ValueError",
        event_time=Timestamp(seconds=1_800_000_000),
    )
    old = device_pb2.VersionFailure(
        version=failure.version, release="tenants/acme/releases/r1", reason="UNKNOWN"
    )
    found = device_pb2.Device(name="tenants/acme/devices/d1", failures=[failure, old])
    device._show(SESSION, found)
    first, second = [line for line in lines(capsys) if line.startswith("failed")]
    assert first.startswith("failed genres@1.0.0 under r2, 2027-01-15")
    assert first.endswith("EXCEPTION: pre.py, line 3 ValueError")
    assert second == "failed genres@1.0.0 under r1, -: UNKNOWN"
    device._show(SESSION, device_pb2.Device(name=found.name))
    assert not [line for line in lines(capsys) if line.startswith("failed")]


def test_a_release_is_shown_with_how_many_failed_later(capsys):
    found = release_pb2.Release(name="tenants/acme/releases/r1", version="a/b/c/d/e/f", steps_percent=[100])
    release._show(SESSION, found)
    assert not [line for line in lines(capsys) if line.startswith("failed")]
    found.late_failed_count = 3
    found.failures.add(reason="EXCEPTION", device_count=3)
    release._show(SESSION, found)
    shown = [line for line in lines(capsys) if line.startswith("failed")]
    assert shown == ["failed later 3", "failed for EXCEPTION (3 devices)"]
