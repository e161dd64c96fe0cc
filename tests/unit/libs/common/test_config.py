import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.config import ConfigError, HelpRequested, ServiceConfig, help_text, load, redacted


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(ServiceConfig):
    """Settings of an example."""

    port: int = field(default=7999, metadata={"help": "gRPC port", "min": 0, "max": 65535})
    wait_s: float = field(default=1.5, metadata={"help": "seconds", "min": 0.0})
    eager: bool = field(default=False, metadata={"help": "start at once"})
    data_dir: Path = field(default=Path("var"), metadata={"help": "where"})
    peers: tuple[str, ...] = field(default=(), metadata={"help": "addresses"})
    note: str | None = field(default="n", metadata={"help": "a text or nothing"})
    password: str = field(default="", metadata={"help": "for the peer", "secret": True})

    def validate(self) -> Iterable[str]:
        if self.eager and self.wait_s > 10:
            yield "--wait-s: more than 10 with --eager; make it less"


@dataclass(frozen=True, slots=True)
class Needs:
    name: str
    count: int


def test_defaults_then_environment_then_flags() -> None:
    environ = {"ISTHMUS_EX_PORT": "1", "ISTHMUS_EX_WAIT_S": "2.5", "ISTHMUS_OTHER_PORT": "9", "PATH": "/bin"}
    config = load(Example, "ex", ["--port", "2", "--data-dir=/tmp/x"], environ)
    assert (config.port, config.wait_s, config.data_dir, config.eager) == (2, 2.5, Path("/tmp/x"), False)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--eager"], True),
        (["--eager=false"], False),
        (["--eager=YES"], True),
        (["--no-eager"], False),
        (["--eager", "--no-eager"], False),
    ],
)
def test_booleans(argv: list[str], expected: bool) -> None:
    assert load(Example, "ex", argv, {}).eager is expected


def test_tuples_paths_and_nothing() -> None:
    config = load(
        Example, "ex", ["--peers", "a:1, b:2", "--peers=c:3", "--note="], {"ISTHMUS_EX_PEERS": "never"}
    )
    assert config.note is None
    assert config.peers[-3:] == ("a:1", "b:2", "c:3")
    assert load(Example, "ex", [], {"ISTHMUS_EX_TLS_CERT_FILE": ""}).tls_cert_file is None


def test_every_fault_comes_in_one_message_with_field_value_and_remedy() -> None:
    argv = ["--prot", "12", "--eager=maybe", "--wait-s", "-1", "stray", "--note"]
    environ = {"ISTHMUS_EX_PORT": "seven", "ISTHMUS_EX_LOG_LEVEL": "INFOO", "ISTHMUS_EX_WAIT": "3"}
    with pytest.raises(ConfigError) as caught:
        load(Example, "ex", argv, environ)
    text = str(caught.value)
    for expected in (
        "'--prot': no such flag; did you mean '--port'?",
        "--eager: 'maybe' is neither true nor false",
        "--wait-s: '-1' is out of range; use at least 0.0",
        "'stray': unexpected",
        "--note: no value; write --note VALUE",
        "ISTHMUS_EX_PORT: 'seven' is not a whole number; write it as 1234",
        "ISTHMUS_EX_LOG_LEVEL: 'INFOO' is not one of DEBUG, INFO, WARNING, ERROR; did you mean 'INFO'?",
        "ISTHMUS_EX_WAIT: no such setting; did you mean 'ISTHMUS_EX_WAIT_S'?",
    ):
        assert expected in text
    assert len(caught.value.faults) == 8


def test_missing_settings_are_told_with_both_ways_to_give_them() -> None:
    with pytest.raises(ConfigError) as caught:
        load(Needs, "ex", [], {})
    assert caught.value.faults == (
        "--name: missing; give it or set ISTHMUS_EX_NAME",
        "--count: missing; give it or set ISTHMUS_EX_COUNT",
    )


def test_the_checks_of_every_class_run() -> None:
    argv = ["--eager", "--wait-s", "11", "--host", "0.0.0.0", "--tls-key-file", "k"]
    with pytest.raises(ConfigError) as caught:
        load(Example, "ex", argv, {})
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "--tls-cert-file, --tls-key-file",
        "--host",
        "--host",
        "--wait-s",
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "unix:/tmp/s"])
def test_the_loopback_needs_no_tls(host: str) -> None:
    assert load(Example, "ex", ["--host", host], {}).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_off_the_loopback_nobody_gets_in_without_a_certificate(host: str) -> None:
    with pytest.raises(ConfigError, match=r"off the loopback"):
        load(Example, "ex", [f"--host={host}"], {})
    files = ["--tls-cert-file=c", "--tls-key-file=k"]
    with pytest.raises(ConfigError, match=r"--tls-client-ca-file"):
        load(Example, "ex", [f"--host={host}", *files], {})
    load(Example, "ex", [f"--host={host}", *files, "--tls-client-ca-file=ca"], {})


def test_a_secret_is_shown_nowhere() -> None:
    config = load(Example, "ex", ["--password", "hunter2"], {})
    assert config.password == "hunter2"
    assert redacted(config)["password"] == "***"
    assert "hunter2" not in str(redacted(config))

    @dataclass(frozen=True)
    class Pin:
        pin: int = field(default=0, metadata={"secret": True})

    with pytest.raises(ConfigError) as caught:
        load(Pin, "ex", ["--pin", "hunter2"], {})
    assert "hunter2" not in str(caught.value)


def test_help_names_every_flag_with_its_variable() -> None:
    with pytest.raises(HelpRequested) as caught:
        load(Example, "ex", ["--port", "x", "--help"], {})
    text = str(caught.value)
    assert text == help_text(Example, "ex")
    assert "--wait-s <float>  (default 1.5; ISTHMUS_EX_WAIT_S)\n      seconds" in text
    assert "--password" in text


def test_what_kubernetes_puts_beside_our_variables_is_no_fault() -> None:
    environ = {"ISTHMUS_EX_SERVICE_HOST": "10.0.0.1", "ISTHMUS_EX_PORT_7400_TCP_ADDR": "10.0.0.1"}
    assert load(Example, "ex", [], environ).port == 7999


def test_a_field_of_another_type_is_the_programmers_fault() -> None:
    @dataclass(frozen=True)
    class Odd:
        x: dict[str, str] = field(default_factory=dict)

    with pytest.raises(TypeError, match=r"Odd\.x"):
        load(Odd, "ex", [], {})


words = st.text(string.printable, max_size=20)


@given(
    st.lists(words, max_size=8), st.dictionaries(words.map(lambda w: "ISTHMUS_EX_" + w), words, max_size=4)
)
def test_any_input_gives_a_configuration_or_its_faults(argv: list[str], environ: dict[str, str]) -> None:
    try:
        load(Example, "ex", argv, environ)
    except (ConfigError, HelpRequested) as raised:
        assert str(raised)  # noqa: PT017


@given(
    st.integers(0, 65535),
    st.floats(0, 1e9),
    st.booleans(),
    st.text(string.ascii_letters + " =-_", max_size=20),
)
def test_values_come_back_as_they_were_given(port: int, wait_s: float, eager: bool, note: str) -> None:
    argv = [f"--port={port}", f"--wait-s={wait_s!r}", f"--eager={eager}", f"--note={note}"]
    if eager and wait_s > 10:
        argv[1], wait_s = "--wait-s=1", 1.0
    config = load(Example, "ex", argv, {})
    assert (config.port, config.wait_s, config.eager, config.note) == (port, wait_s, eager, note or None)
