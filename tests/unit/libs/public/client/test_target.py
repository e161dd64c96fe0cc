import pathlib

import pytest

from isthmus.client import connect, connect_async

KEY = "isk_abc_def"


@pytest.mark.parametrize("key", ["", "var/admin.key", "Bearer isk_a_b", "isk_a b", "isk_ä_b", "isk_a\x00b"])
def test_what_is_no_key_is_refused_before_anything_is_sent(key: str) -> None:
    with pytest.raises(ValueError, match="give the key itself"):
        connect("127.0.0.1:1", key, plaintext=True)


@pytest.mark.parametrize("address", ["http://127.0.0.1:7400", "https://example.org", "127.0.0.1:", ""])
def test_an_address_that_is_no_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        connect(address, KEY)


@pytest.mark.parametrize(
    "address", ["gateway.example.org:7400", "10.0.0.1:7400", "127.evil.example:1", "[2001:db8::1]:1"]
)
def test_a_key_is_not_sent_in_the_clear_to_another_machine(address: str) -> None:
    with pytest.raises(ValueError, match="in the clear"):
        connect(address, KEY, plaintext=True)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1", "unix:/run/gateway.sock"]
)
def test_plaintext_on_the_loopback_is_fine(address: str) -> None:
    with connect(address, f" {KEY}\n", plaintext=True) as channel:
        assert channel is not None


def test_a_ca_file_and_plaintext_exclude_each_other(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="leave one of the two out"):
        connect("127.0.0.1:1", KEY, ca_file=tmp_path / "ca.pem", plaintext=True)


def test_a_ca_file_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ca\.pem"):
        connect("127.0.0.1:1", KEY, ca_file=tmp_path / "ca.pem")


def test_the_channel_for_asyncio_checks_the_same() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        connect_async("gateway.example.org:7400", KEY, plaintext=True)
