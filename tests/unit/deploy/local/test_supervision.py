import configparser
import shlex
from pathlib import Path

import pytest
from supervisor.datatypes import dict_of_key_value_pairs

from deploy.local.errors import StackError
from deploy.local.layout import Layout
from deploy.local.supervision import Crashes, Supervisor, configuration, crashes
from deploy.local.topology import Endpoint, Process

ENDPOINTS = (Endpoint("x", 7400),)


def process(command: tuple[str, ...] = ("run",), **environment: str) -> Process:
    return Process("gateway", command, ENDPOINTS, environment)


def read(text: str) -> configparser.ConfigParser:
    # As supervisord reads it: ` ;` begins a comment, `%` is its own affair.
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    parser.read_string(text)
    return parser


def test_commands_and_settings_arrive_as_they_were_given(tmp_path: Path) -> None:
    command = ("/opt/my python", "-c", 'print("100%")', "it's")
    settings = {"URL": "sqlite:////a b/c%20d.db?x=1,y=2", "EMPTY": "", "LIST": "a=1,b=2"}
    section = read(configuration(Layout(tmp_path), [process(command, **settings)]))["program:gateway"]
    assert shlex.split(section["command"].replace("%%", "%")) == list(command)
    got = dict_of_key_value_pairs(section["environment"])
    assert {name: value.replace("%%", "%") for name, value in got.items()} == {
        **settings,
        "ISTHMUS_STACK": str(tmp_path),
    }


@pytest.mark.parametrize("value", ['say "hi"', "two\nlines", "a ;comment"])
def test_a_value_that_would_be_read_as_another_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(StackError, match="can't be given to a service"):
        configuration(Layout(tmp_path), [process(SETTING=value)])


def test_the_file_is_the_same_for_the_same_stack(tmp_path: Path) -> None:
    one = configuration(Layout(tmp_path), [process(A="1", B="2")])
    assert one == configuration(Layout(tmp_path), [process(B="2", A="1")])


LOG = """\
2026-11-30 14:00:00,000 INFO supervisord started with pid 10
2026-11-30 14:00:01,000 INFO spawned: 'gateway' with pid 11
2026-11-30 14:00:09,000 WARN exited: gateway (exit status 1; not expected)
2026-11-30 15:00:00,000 INFO supervisord started with pid 20
2026-11-30 15:00:01,000 INFO spawned: 'gateway' with pid 21
2026-11-30 15:00:11,000 INFO success: gateway entered RUNNING state, process has stayed up
2026-11-30 15:01:00,000 WARN exited: gateway (terminated by SIGKILL; not expected)
2026-11-30 15:02:00,000 INFO exited: gateway (exit status 0; expected)
2026-11-30 15:03:00,000 INFO exited: tunnel (exit status 3; not expected)
2026-11-30 15:04:00,000 INFO stopped: deployer (exit status 0)
2026-11-30 15:05:00,000 INFO gave up: tunnel entered FATAL state, too many start retries too quickly
"""


def test_crashes_are_counted_since_the_supervisors_last_start(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    layout.supervisor_log.write_text(LOG)
    assert crashes(layout) == {
        "gateway": Crashes(2, "exit status 0 at 2026-11-30 15:02:00"),
        "tunnel": Crashes(1, "exit status 3 at 2026-11-30 15:03:00"),
    }


def test_crashes_are_counted_over_a_rotated_log(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    first, second = LOG.split("2026-11-30 15:02:00")
    layout.supervisor_log.with_name("supervisord.log.1").write_text(first)
    layout.supervisor_log.write_text("2026-11-30 15:02:00" + second)
    assert crashes(layout)["gateway"].count == 2


def test_without_a_log_nothing_crashed(tmp_path: Path) -> None:
    assert crashes(Layout(tmp_path)) == {}


def test_a_supervisor_that_is_gone_is_told_and_no_traceback(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    supervisor = Supervisor(layout)
    assert not supervisor.running()
    assert supervisor.processes() == {}
    for call in (supervisor.apply, lambda: supervisor.start("gateway"), lambda: supervisor.stop("gateway")):
        with pytest.raises(StackError, match=r"supervisord doesn't answer .*; see .*supervisord\.log"):
            call()
    supervisor.shut_down()
