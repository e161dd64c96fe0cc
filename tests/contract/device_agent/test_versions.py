"""Versions on a device: activated whole, rolled back once, reported until it is acknowledged."""

import pytest

from services.device_agent.domain.rollout import Entry, Stage, State
from services.device_agent.store import versions
from services.device_agent.store.versions import Moment
from services.device_agent.testing.store import finish, queue_run, start_version


def test_an_activation_is_all_or_nothing(connection):
    start_version(connection)
    good = Entry("t", "2", "digest-2", "r")
    versions.put_staged(connection, good, b"m", Moment(1.0, "s2"))
    connection.execute("SAVEPOINT x")
    missing = Entry("u", "1", "d", "r")
    with pytest.raises(LookupError):
        versions.activate(connection, [(good, Moment(1.0, "a2")), (missing, Moment(1.0, "a3"))], {})
    connection.execute("ROLLBACK TO x")
    assert versions.profile(connection) == ["t@1"]


def test_a_roll_back_restores_the_previous_version_and_owes_one_report(connection):
    start_version(connection)
    finish(connection, queue_run(connection))
    start_version(connection, "2")
    assert versions.find_version(connection, "t", "1").state is State.PREVIOUS
    assert versions.roll_back(connection, "t", "2", "TIMEOUT", "slow", Moment(5.0, "f")) == "1"
    assert versions.roll_back(connection, "t", "2", "TIMEOUT", "slow", Moment(6.0, "g")) is None
    assert versions.profile(connection) == ["t@1"]
    failed = [report for report in versions.read_reports(connection, 100) if report.stage is Stage.FAILED]
    assert [(r.version, r.failure_reason, r.report_id) for r in failed] == [("2", "TIMEOUT", "f")]


def test_reports_wait_once_each_and_go_when_acknowledged(connection):
    for number in range(3):
        versions.add_report(connection, "t", "1", "r", Stage.STAGED, Moment(1.0, f"id-{number}"))
    (report,) = versions.read_reports(connection, 10)
    assert report.report_id == "id-0"
    versions.delete_reports(connection, ["id-0"])
    assert versions.read_reports(connection, 10) == []


def test_forgetting_what_runs_lets_the_previous_version_run_and_reports_nothing(connection):
    start_version(connection)
    finish(connection, queue_run(connection))
    start_version(connection, "2")
    before = len(versions.read_reports(connection, 100))
    versions.forget(connection, "t", "2")
    assert versions.profile(connection) == ["t@1"]
    assert len(versions.read_reports(connection, 100)) == before


def test_what_a_failure_says_fits_what_the_cloud_keeps(connection):
    entry = Entry("t", "1", "sha256:0", "tenants/a/releases/r")
    versions.fail_staged(connection, entry, "LOAD_ERROR", "\0" + "é" * 4096, Moment(1.0, "id"))
    (report,) = versions.read_reports(connection, 10)
    assert report.failure_message.startswith("\ufffdéé")
    assert 4090 < len(report.failure_message.encode()) <= 4096


def test_notes_of_failed_versions_stay_bounded(connection):
    for number in range(40):
        entry = Entry("t", f"v{number}", "d", "r")
        versions.fail_staged(connection, entry, "LOAD_ERROR", "x" * 10_000, Moment(1.0, f"id-{number}"))
    here = versions.list_versions(connection)
    assert len(here) == 16
    assert all(len(version.failure_message) == 4096 for version in here)
