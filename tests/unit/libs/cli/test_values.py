import json

import click
import pytest

from libs.cli.main import main
from libs.cli.values import (
    DURATION,
    PERCENTAGES,
    Number,
    parse_attributes,
    parse_size,
    policy_json,
    version_name,
)
from libs.common.errors import Invalid
from libs.common.names import TenantName


def test_durations_are_in_seconds() -> None:
    assert DURATION.convert("250ms", None, None) == 0.25
    assert DURATION.convert("12h", None, None) == 12 * 3600


def test_a_wrong_duration_names_the_value() -> None:
    with pytest.raises(click.BadParameter, match="12x"):
        DURATION.convert("12x", None, None)


def test_percentages_with_and_without_the_sign() -> None:
    assert PERCENTAGES.convert("10%, 50,100%", None, None) == (10.0, 50.0, 100.0)
    with pytest.raises(click.BadParameter, match="ten"):
        PERCENTAGES.convert("ten%", None, None)


def test_attributes() -> None:
    assert parse_attributes(("os=linux", "note=a=b")) == {"os": "linux", "note": "a=b"}
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        parse_attributes(("os",))
    with pytest.raises(click.BadParameter, match="twice"):
        parse_attributes(("os=a", "os=b"))


def test_a_policy_of_attributes_is_an_expression() -> None:
    assert policy_json(None, ()) == ""
    assert json.loads(policy_json(None, ("os=linux",))) == {"eq": ["os", "linux"]}
    assert json.loads(policy_json(None, ("os=linux", "tier=high"))) == {
        "and": [{"eq": ["os", "linux"]}, {"eq": ["tier", "high"]}]
    }
    assert policy_json('{"exists": "os"}', ()) == '{"exists": "os"}'


def test_version_names() -> None:
    for same in ("task@1.0", "tenants/t/tasks/task/versions/1.0"):
        assert str(version_name(TenantName("t"), same)) == "tenants/t/tasks/task/versions/1.0"
    other = "tenants/other/tasks/task/versions/1.0"
    assert str(version_name(TenantName("t"), other)) == other
    for wrong in ("task", "task@", "@1.0", "ta/sk@1"):
        with pytest.raises(Invalid):
            version_name(TenantName("t"), wrong)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1024", 1024),
        ("512MiB", 512 * 1024**2),
        ("512 MiB", 512 * 1024**2),
        ("2Gi", 2 * 1024**3),
        ("1.5GB", 1_500_000_000),
        ("3T", 3 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 XiB", "1e3", "1.GiB", "0x10", "1" * 13, "½GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "1e999"])
def test_numbers_are_finite(value: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a finite number"):
        Number().convert(value, None, None)
    with pytest.raises(click.BadParameter):
        Number(min=0).convert(value, None, None)
    assert Number(min=0).convert("1e-4", None, None) == 1e-4


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_flags_of_numbers_refuse_what_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "compare", "a", "b", "--run", f"--tolerance={value}"]) == 2
    assert "'--tolerance'" in capsys.readouterr().err
    assert main([f"--timeout={value}", "tenant", "list"]) == 2
    assert "'--timeout'" in capsys.readouterr().err
