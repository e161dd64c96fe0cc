"""The stack's life with services that only serve their health: up, down, crashes, ports, several at once."""

import dataclasses
import http.client
import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deploy.local import health, supervision
from deploy.local import stack as stack_module
from deploy.local.__main__ import main
from deploy.local.errors import StackError
from deploy.local.layout import Layout, Options
from deploy.local.stack import Stack
from deploy.local.status import Row
from deploy.local.supervision import alive
from tests.integration.stack.conftest import WITHOUT

pytestmark = pytest.mark.usefixtures("fake_services")
MakeStack = Callable[..., Stack]
LEFT_OUT = [word for name in WITHOUT for word in ("--without", name)]


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = 60) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)


def pids(stack: Stack) -> dict[str, int]:
    return {row.name: row.pid for row in stack.status()}


def test_up_returns_when_all_is_healthy_and_down_leaves_nothing(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    rows = stack.status()
    assert [(row.name, row.state, row.health, row.restarts) for row in rows] == [
        ("deployer", "running", "", 0),
        ("tunnel", "running", "", 0),
        ("gateway", "running", "", 0),
    ]
    assert all(row.pid and row.rss_bytes > 1_000_000 for row in rows)
    assert stack.endpoints == {
        "deployer": f"127.0.0.1:{7410 + offset}",
        "tunnel": f"127.0.0.1:{7405 + offset}",
        "gateway": f"127.0.0.1:{7400 + offset}",
        "gateway-http": f"http://127.0.0.1:{7480 + offset}",
    }
    assert stack.admin_key.startswith("isk_")
    processes = [psutil.Process(row.pid) for row in rows]
    assert stack.down() is True
    assert not any(alive(process) for process in processes)
    assert stack.status() == []
    assert stack.down() is False


def test_a_second_up_changes_nothing(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    before, key = pids(stack), stack.admin_key
    files = {
        path: path.stat().st_mtime_ns for path in stack.layout.home.rglob("*.*") if "log" not in path.parts
    }
    said: list[str] = []
    stack.up(said.append)
    assert pids(stack) == before
    assert stack.admin_key == key
    assert said == []
    secrets = [path for path in files if path.suffix in {".key", ".pem", ".conf"}]
    assert secrets
    assert [path for path in secrets if path.stat().st_mtime_ns != files[path]] == []


def test_what_is_secret_is_for_this_user_alone(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    home = stack.layout.home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    private = [*home.rglob("*.key"), stack.layout.supervisor_file, stack.layout.socket]
    assert len(private) >= 7
    assert [path for path in private if path.stat().st_mode & 0o077] == []


def test_a_killed_service_comes_back_and_is_reported(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    before = pids(stack)
    killed = stack.kill("deployer")
    assert killed == before["deployer"]
    eventually(lambda: stack.pid("deployer") not in {0, killed}, "another process")
    stack.wait_healthy("deployer")
    rows = {row.name: row for row in stack.status()}
    assert rows["deployer"].restarts == 1
    assert "SIGKILL" in rows["deployer"].last_exit
    assert [rows[name].pid for name in ("gateway", "tunnel")] == [before["gateway"], before["tunnel"]]
    assert rows["gateway"].restarts == 0


def test_a_service_that_cannot_start_fails_the_start_with_its_last_words(
    make_stack: MakeStack, offset: int
) -> None:
    stack = make_stack(offset)
    (stack.layout.home / "tunnel").mkdir(parents=True)
    crash = stack.layout.home / "tunnel" / "crash"
    crash.touch()
    with pytest.raises(StackError, match=r"(?s)tunnel doesn't become healthy.*\n  tunnel: boom"):
        stack.up()
    row = next(row for row in stack.status() if row.name == "tunnel")
    assert row.state in {"backing off", "starting"}
    assert row.health
    assert row.restarts >= 3
    assert "exit status 3" in row.last_exit
    # What kept it from starting is gone: the same command brings the stack up.
    crash.unlink()
    stack.up()
    assert [row.health for row in stack.status()] == ["", "", ""]


def test_restarts_come_slower_and_slower(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    (stack.layout.home / "tunnel" / "crash").touch()
    stack.kill("tunnel")

    def ends() -> int:
        return next(row for row in stack.status() if row.name == "tunnel").restarts

    eventually(lambda: ends() >= 4, "several ends")
    log = stack.layout.supervisor_log.read_text()
    starts = [line.split()[1] for line in log.splitlines() if "spawned: 'tunnel'" in line]
    seconds = [
        sum(float(part) * weight for part, weight in zip(text.split(":"), (3600, 60, 1), strict=True))
        for text in (start.replace(",", ".") for start in starts)
    ]
    # The first of these follows the kill of a service that had run for a while or not.
    waits = [(later - earlier) % 86400 for earlier, later in itertools.pairwise(seconds[1:])]
    # The supervisor waits a second longer each time; what a start itself takes comes on top.
    assert all(wait >= number for number, wait in enumerate(waits[1:], 1)), waits


def test_a_service_that_is_given_up_is_reported_and_comes_back_with_the_next_start(
    make_stack: MakeStack, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "RETRIES", 1)
    stack = make_stack(offset)
    stack.up()
    crash = stack.layout.home / "tunnel" / "crash"
    crash.touch()
    stack.kill("tunnel")

    def tunnel() -> Row:
        return next(row for row in stack.status() if row.name == "tunnel")

    eventually(lambda: tunnel().state == "given up", "given up")
    assert tunnel().pid == 0
    assert tunnel().health.startswith("given up: ")
    crash.unlink()
    said: list[str] = []
    stack.up(said.append)
    assert said == ["starting tunnel"]
    assert (tunnel().state, tunnel().health) == ("running", "")


def test_restart_is_no_crash(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    before = pids(stack)
    assert stack.restart("deployer") == ["deployer"]
    after = pids(stack)
    assert after["deployer"] != before["deployer"]
    assert after["gateway"] == before["gateway"]
    assert stack.restart() == ["deployer", "tunnel", "gateway"]
    rows = stack.status()
    assert [(row.restarts, row.health) for row in rows] == [(0, "")] * 3
    assert {row.pid for row in rows} & {*before.values(), *after.values()} == set()


def test_a_taken_port_is_named_with_its_holder_before_anything_starts(
    make_stack: MakeStack, offset: int
) -> None:
    stack = make_stack(offset)
    program = (
        "import socket, sys, time\ns = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    port = 8410 + offset
    with subprocess.Popen(
        [sys.executable, "-c", program, str(port)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            with pytest.raises(StackError) as caught:
                stack.up()
        finally:
            holder.kill()
    message = str(caught.value)
    assert (
        f"port {port} (deployer, metrics) is held by process {holder.pid} ({sys.executable} -c import"
        in message
    )
    assert "--port-offset" in message
    assert not stack.running()
    assert not stack.layout.admin_key_file.exists()


def test_two_stacks_leave_each_other_alone(make_stack: MakeStack, offset: int) -> None:
    first = make_stack(offset, "first")
    first.up()
    second = make_stack(offset, "second")
    with pytest.raises(StackError) as caught:
        second.up()
    assert f"of the stack in {first.layout.home}" in str(caught.value)
    other = make_stack(offset + 1, "second")
    other.up()
    before = pids(first)
    other.down()
    assert pids(first) == before
    assert [row.health for row in first.status()] == ["", "", ""]


def test_what_a_killed_supervisor_left_behind_is_cleared_away(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    old = [psutil.Process(row.pid) for row in stack.status()]
    supervisor = psutil.Process(int(stack.layout.supervisor_pid_file.read_text()))
    supervisor.kill()
    eventually(lambda: not stack.running(), "no supervisor")
    assert all(alive(process) for process in old)
    said: list[str] = []
    stack.up(said.append)
    assert sum("left behind" in line for line in said) == 3
    assert not any(alive(process) for process in old)
    assert [row.health for row in stack.status()] == ["", "", ""]


def test_down_ends_what_a_killed_supervisor_left_behind(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    old = [psutil.Process(row.pid) for row in stack.status()]
    os.kill(int(stack.layout.supervisor_pid_file.read_text()), signal.SIGKILL)
    eventually(lambda: not stack.running(), "no supervisor")
    assert stack.down() is True
    assert not any(alive(process) for process in old)


def test_down_ends_a_stack_whose_supervisor_hangs(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    old = [psutil.Process(row.pid) for row in stack.status()]
    supervisor = psutil.Process(int(stack.layout.supervisor_pid_file.read_text()))
    supervisor.suspend()
    assert stack.down() is True
    assert not any(alive(process) for process in [supervisor, *old])


def test_a_changed_setting_restarts_only_its_service(make_stack: MakeStack, offset: int) -> None:
    make_stack(offset).up()
    stack = make_stack(offset, ISTHMUS_DEPLOYER_LOG_LEVEL="DEBUG", ISTHMUS_OTHER_THING="x")
    before = pids(stack)
    stack.up()
    after = pids(stack)
    assert after["deployer"] != before["deployer"]
    assert after["gateway"] == before["gateway"]
    assert stack.log_tail("deployer")[-1] == "deployer: serving with LOG_LEVEL=DEBUG"
    assert "ISTHMUS_OTHER_THING" not in psutil.Process(after["deployer"]).environ()


def test_a_stack_keeps_its_options_while_it_runs(make_stack: MakeStack, offset: int) -> None:
    started = make_stack(offset)
    started.up()
    found = Stack(started.layout.home)
    assert found.options == Options(offset, WITHOUT, tls=False)
    before = pids(started)
    found.up()
    assert pids(found) == before
    found.down()
    assert Stack(started.layout.home).options == Options()


def test_a_stack_whose_supervisor_was_killed_says_so_and_comes_back_as_it_was(
    make_stack: MakeStack, offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = make_stack(offset)
    stack.up()
    before = pids(stack)
    home = ["--home", str(stack.layout.home)]
    supervision.kill(psutil.Process(int(stack.layout.supervisor_pid_file.read_text())))
    assert main(["status", *home]) == 1
    text = capsys.readouterr().out
    assert "the supervisor is gone" in text
    assert all(name in text and str(pid) in text for name, pid in before.items())
    found = Stack(stack.layout.home)
    assert [(row.name, row.pid, row.state) for row in found.status()] == [
        (name, before[name], "unsupervised") for name in ("deployer", "tunnel", "gateway")
    ]
    assert main(["up", *home]) == 0
    assert found.options == Options(offset, WITHOUT, tls=False)
    assert found.running()
    assert not pids(found).items() & before.items()
    assert main(["down", *home]) == 0
    assert main(["status", *home]) == 3


def test_an_interrupted_start_says_that_it_goes_on(
    make_stack: MakeStack, offset: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = make_stack(offset)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    arguments = ["up", "--home", str(stack.layout.home), "--port-offset", str(offset)]
    with monkeypatch.context() as patch:
        patch.setattr(Stack, "_wait_healthy", interrupted)
        assert main([*arguments, *LEFT_OUT]) == 130
    assert "goes on starting" in capsys.readouterr().err
    Stack(stack.layout.home).wait_healthy()
    assert Stack(stack.layout.home).options.port_offset == offset


def test_the_gateway_serves_tls_by_the_development_authority(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset, tls=True)
    stack.up()
    assert [row.health for row in stack.status()] == ["", "", ""]
    assert stack.endpoints["gateway-http"].startswith("https://")
    (gateway,) = (process for process in stack.processes() if process.name == "gateway")
    plain = dataclasses.replace(gateway.endpoints[0], scheme="grpc")
    assert "UNAVAILABLE" in health.fault(dataclasses.replace(gateway, endpoints=(plain,)), stack.ca_file)


def test_the_isthmus_command_finds_the_stack(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset, tls=True)
    stack.up()
    settings = json.loads((stack.layout.home / "cli.json").read_text())
    assert settings == {
        "gateway": f"127.0.0.1:{7400 + offset}",
        "api_key_file": "admin.key",
        "tenant": "default",
        "keys_dir": "keys",
        "ca_file": "tls/ca.pem",
    }
    for name in ("api_key_file", "ca_file"):
        assert (stack.layout.home / settings[name]).is_file()


def test_a_home_with_a_long_path(make_stack: MakeStack, offset: int, tmp_path: Path) -> None:
    stack = make_stack(offset, "long-" * 30)
    assert len(os.fsencode(stack.layout.run_dir / "supervisor.sock")) > 107
    stack.up()
    assert [row.health for row in stack.status()] == ["", "", ""]
    assert stat.S_IMODE(stack.layout.socket.parent.stat().st_mode) == 0o700
    stack.down()
    assert not stack.layout.socket.parent.exists()


def test_the_metrics_of_each_service_are_where_the_table_says(make_stack: MakeStack, offset: int) -> None:
    stack = make_stack(offset)
    stack.up()
    for row in stack.status():
        host, _, port = row.addresses[-1].removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"python_info" in answer.read()
        connection.close()


class TestCommandLine:
    def arguments(self, home: Path, *more: str) -> list[str]:
        return ["--home", str(home), *more]

    def test_a_whole_day(
        self,
        make_stack: MakeStack,
        offset: int,
        capfd: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        home = make_stack(offset).layout.home
        assert main(self.arguments(home, "status")) == 3
        assert "isn't running" in capfd.readouterr().out
        assert main(self.arguments(home, "up", "--port-offset", str(offset), *LEFT_OUT)) == 0
        out = capfd.readouterr().out
        for expected in (
            f"127.0.0.1:{7400 + offset}",
            f"http://127.0.0.1:{8410 + offset}",
            "make demo",
            "admin.key",
        ):
            assert expected in out
        assert "isk_" not in out
        assert main(self.arguments(home, "status")) == 0
        lines = capfd.readouterr().out.splitlines()
        assert lines[0].split()[:5] == ["SERVICE", "STATE", "PID", "UPTIME", "RESTARTS"]
        assert [line.split()[:2] for line in lines[1:]] == [
            ["deployer", "running"],
            ["tunnel", "running"],
            ["gateway", "running"],
        ]
        assert main(self.arguments(home, "status", "--json")) == 0
        assert '"restarts": 0' in capfd.readouterr().out
        assert main(self.arguments(home, "restart", "tunnel")) == 0
        assert capfd.readouterr().out == "tunnel: restarted and healthy\n"
        assert main(self.arguments(home, "restart", "deployre")) == 1
        assert "no process 'deployre'; there are deployer, tunnel, gateway" in capfd.readouterr().err
        assert main(self.arguments(home, "down")) == 0
        assert capfd.readouterr().out == "stopped\n"
        assert main(self.arguments(home, "down")) == 0
        assert capfd.readouterr().out == "the stack isn't running\n"

    def test_logs(self, make_stack: MakeStack, offset: int) -> None:
        stack = make_stack(offset)
        stack.up()

        def logs(*names: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "deploy.local", "logs", "--home", str(stack.layout.home), *names]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)

        assert logs("deployer").stdout == "deployer: serving with LOG_LEVEL=None\n"
        everything = logs().stdout
        assert "tunnel: serving" in everything
        assert "spawned: 'gateway'" in everything
        unknown = logs("nobody")
        assert unknown.returncode == 1
        assert "no log of 'nobody'; there are deployer, gateway, supervisord, tunnel" in unknown.stderr

    def test_an_unhealthy_service_makes_status_fail(
        self, make_stack: MakeStack, offset: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        stack = make_stack(offset)
        stack.up()
        (stack.layout.home / "tunnel" / "crash").touch()
        stack.kill("tunnel")
        eventually(lambda: any(row.health for row in stack.status()), "an unhealthy row")
        assert main(self.arguments(stack.layout.home, "status")) == 1

    @pytest.mark.parametrize("offset_text", ["60000", "-7000"])
    def test_an_offset_out_of_range(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], offset_text: str
    ) -> None:
        assert main(self.arguments(tmp_path / "home", "up", "--port-offset", offset_text)) == 1
        assert "the offset from -6354 to 57075" in capfd.readouterr().err

    def test_a_home_that_cannot_be_made(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "file").touch()
        assert main(self.arguments(tmp_path / "file" / "home", "up")) == 1
        assert "choose another with --home" in capfd.readouterr().err


def test_two_starts_at_once_make_one_stack(make_stack: MakeStack, offset: int, tmp_path: Path) -> None:
    stack = make_stack(offset)
    faults: list[Exception] = []

    def up() -> None:
        try:
            make_stack(offset).up()
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    log = stack.layout.supervisor_log.read_text()
    assert log.count("supervisord started") == 1
    assert log.count("spawned: 'gateway'") == 1


def test_a_port_that_was_just_closed_is_free(offset: int) -> None:
    # Connections that are in TIME_WAIT after a stop must not keep the stack from starting again.
    with socket.create_server(("127.0.0.1", 7400 + offset)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()
        client.recv(1)
        client.close()
    assert stack_module.holders([7400 + offset]) == {}


def test_the_layout_reads_no_options_that_make_no_sense(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    layout.make()
    for text in ("", "{}", "[]", '{"port_offset": "x", "without": [], "tls": 0}'):
        layout.options_file.write_text(text)
        assert layout.read_options() is None
