import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.common.names import (
    DeviceName,
    ExperimentName,
    KeyName,
    ModelName,
    ModelVersionName,
    ReleaseName,
    TaskName,
    TenantName,
    VersionName,
    check_id,
    check_version,
)

ids = st.from_regex(re.compile(r"[a-z0-9-]{1,63}", re.ASCII), fullmatch=True)
versions = st.from_regex(re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII), fullmatch=True).filter(
    lambda v: v not in (".", "..")
)


@given(ids, ids, versions)
def test_every_name_survives_being_written_and_parsed(tenant: str, other: str, version: str) -> None:
    for name in (
        TenantName(tenant),
        TaskName(tenant, other),
        VersionName(tenant, other, version),
        ReleaseName(tenant, other),
        DeviceName(tenant, other),
        KeyName(tenant, other),
        ModelName(tenant, version),
        ModelVersionName(tenant, version, version),
        ExperimentName(tenant, other),
    ):
        assert type(name).parse(str(name)) == name


def test_the_spelling_is_that_of_the_contract() -> None:
    assert str(VersionName("acme", "ctr", "1.0")) == "tenants/acme/tasks/ctr/versions/1.0"
    assert str(ReleaseName("acme", "r1")) == "tenants/acme/releases/r1"
    assert VersionName.parse("tenants/acme/tasks/ctr/versions/1.0").parent == TaskName("acme", "ctr")


@given(st.text(max_size=200))
def test_any_text_parses_to_itself_or_is_invalid(text: str) -> None:
    for kind in (TenantName, TaskName, VersionName, DeviceName):
        try:
            assert str(kind.parse(text)) == text
        except Invalid:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tenants/acme",
        "tenants/acme/tasks/",
        "tenants/acme/tasks/ctr/",
        "/tenants/acme/tasks/ctr",
        "tenants/acme/jobs/ctr",
        "tenants/ACME/tasks/ctr",
        "tenants/acme/tasks/ctr\n",
        "tenants/acme/tasks/" + "x" * 64,
        "tenants/acme/tasks/naïve",
        "tenants/acme/tasks/٣",
        "x" * 100_000,
    ],
)
def test_a_malformed_name_is_refused_with_field_value_and_remedy(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        TaskName.parse(text, "task")
    assert caught.value.message.startswith("task: ")
    assert len(caught.value.message) < 400


def test_the_message_says_the_format() -> None:
    with pytest.raises(
        Invalid, match=r"name: 'tasks/ctr' is not of the form 'tenants/\{tenant\}/tasks/\{task\}'"
    ):
        TaskName.parse("tasks/ctr")


def test_an_instance_never_holds_a_malformed_id() -> None:
    with pytest.raises(Invalid, match="tenant: 'a/b' is not an id"):
        TaskName("a/b", "ctr")


@pytest.mark.parametrize("version", ["", ".", "..", "a/b", "1 0", "v" * 129, "1\n"])
def test_versions_that_would_not_do_as_file_names_are_refused(version: str) -> None:
    with pytest.raises(Invalid, match="version: "):
        check_version(version, "version")


def test_checks_return_what_they_checked() -> None:
    assert check_id("a-1", "x") == "a-1"
    assert check_version("1.0-RC_1", "x") == "1.0-RC_1"


def test_a_field_that_is_called_as_the_part_of_the_name_is_said_once() -> None:
    with pytest.raises(Invalid, match=r"^device: 'X' is not an id"):
        DeviceName.parse("tenants/t/devices/X", "device")
    with pytest.raises(Invalid, match=r"^name: device: 'X' is not an id"):
        DeviceName.parse("tenants/t/devices/X")
