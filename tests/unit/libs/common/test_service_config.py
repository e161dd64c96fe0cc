import pytest

from libs.common.service_config import is_loopback, is_loopback_target


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "unix:/run/a.sock"])
def test_what_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "gateway.example", "127.0.0.1.example"])
def test_what_others_reach_too(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("target", "here"),
    [
        ("127.0.0.1:7400", True),
        ("[::1]:7400", True),
        ("dns:///localhost:7400", True),
        ("unix:/run/a.sock", True),
        ("127.gateway.example:7400", False),
        ("dns:///127.gateway.example:7400", False),
        ("10.0.0.1:7400", False),
        ("7400", False),
    ],
)
def test_targets(target: str, here: bool) -> None:
    assert is_loopback_target(target) is here
