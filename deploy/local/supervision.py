"""Supervisord: its configuration, its control socket, and what its log says about crashes.

How a crashed process comes back: one that ran for ``SETTLED_S`` seconds is started again at once; one that
ended sooner waits a second longer each time, and after ``RETRIES`` such ends in a row it is given up, which
``status`` says. A process that crashes again and again is therefore never started more often than that,
whatever the reason.
"""

import contextlib
import http.client
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from deploy.local.errors import StackError
from deploy.local.layout import ROOT, Layout
from deploy.local.ports import MARKER
from deploy.local.topology import Process

SETTLED_S = 10
RETRIES = 20
LOG_BYTES = 5 * 1024 * 1024
STOP_S = 60.0
"""Seconds after which what was told to stop counts as stuck."""
LAUNCH_S = 20.0
"""Seconds that supervisord has to start, and then to answer."""
_GONE = {"STOPPED", "EXITED", "FATAL", "UNKNOWN"}
ANSWER_S = 5.0
"""Seconds within which supervisord answers; it does no waiting of its own for us."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """A process as supervisord sees it.

    Attributes:
        name: the process.
        state: supervisord's word: STARTING, RUNNING, BACKOFF, STOPPING, STOPPED, EXITED or FATAL.
        pid: 0 when there is none.
        uptime_s: seconds since it was started; 0 when it isn't up.
        description: why it isn't up.
    """

    name: str
    state: str
    pid: int
    uptime_s: float
    description: str

    @property
    def up(self) -> bool:
        """Say whether there is a process."""
        return self.state in {"STARTING", "RUNNING"}


@dataclass(frozen=True, slots=True)
class Crashes:
    """How often a process ended by itself since the supervisor started, and how the last time."""

    count: int = 0
    last: str = ""


def _value(text: str) -> str:
    """Return a value for supervisord's file, where ``%`` begins an expansion and `` ;`` a comment."""
    if "\n" in text or " ;" in text:
        raise StackError(f"{text!r} can't be given to a service: it holds a line end or ' ;'")
    return text.replace("%", "%%")


def _environment(variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        if '"' in value:
            raise StackError(f"{name}={value!r} can't be given to a service: it holds a quotation mark")
    return ",".join(f'{name}="{_value(value)}"' for name, value in sorted(variables.items()))


def configuration(layout: Layout, processes: Sequence[Process]) -> str:
    """Return supervisord's file for the processes."""
    lines = [
        "[unix_http_server]",
        f"file={_value(str(layout.socket))}",
        "chmod=0600",
        "[supervisord]",
        f"logfile={_value(str(layout.supervisor_log))}",
        f"pidfile={_value(str(layout.supervisor_pid_file))}",
        f"directory={_value(str(ROOT))}",
        f"logfile_maxbytes={LOG_BYTES}",
        "logfile_backups=1",
        "umask=077",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for process in processes:
        lines += [
            f"[program:{process.name}]",
            f"command={_value(shlex.join(process.command))}",
            f"environment={_environment({MARKER: str(layout.home), **process.environment})}",
            f"priority={process.start_order}",
            "autorestart=true",
            f"startsecs={SETTLED_S}",
            f"startretries={RETRIES}",
            f"stopwaitsecs={process.stop_s}",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={_value(str(layout.log_file(process.name)))}",
            f"stdout_logfile_maxbytes={LOG_BYTES}",
            "stdout_logfile_backups=2",
        ]
    return "\n".join(lines) + "\n"


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Supervisor:
    """The supervisord of one stack."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call supervisord's XML-RPC interface.

        Raises:
            StackError: it doesn't run, or doesn't answer.
            xmlrpc.client.Fault: it refuses.
        """
        connection = _Connection(self._layout.socket)
        try:
            body = xmlrpc.client.dumps(arguments, f"supervisor.{method}")
            connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise StackError(
                f"supervisord doesn't answer ({error}); see {self._layout.supervisor_log}"
            ) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise StackError(f"supervisord answered {method} with HTTP {answer.status}")
        return xmlrpc.client.loads(text)[0][0]

    def running(self) -> bool:
        """Say whether supervisord runs and answers."""
        try:
            return bool(self._call("getState")["statename"] == "RUNNING")
        except (StackError, xmlrpc.client.Error):
            return False

    def processes(self) -> dict[str, Supervised]:
        """Return every process by name; none when supervisord doesn't run."""
        try:
            found = self._call("getAllProcessInfo")
        except (StackError, xmlrpc.client.Error):
            return {}
        return {
            info["name"]: Supervised(
                info["name"],
                info["statename"],
                info["pid"],
                max(0, info["now"] - info["start"]) if info["statename"] in {"STARTING", "RUNNING"} else 0,
                info["spawnerr"] or info["description"],
            )
            for info in found
        }

    def launch(self, environ: Mapping[str, str]) -> None:
        """Start supervisord, which starts the processes of its file.

        Raises:
            StackError: it doesn't come up; the text holds what it said.
        """
        # Settings of the caller's shell reach a service only where `topology` passes them on.
        clean = {key: value for key, value in environ.items() if not key.startswith(("ISTHMUS_", "PYTHON"))}
        clean[MARKER] = str(self._layout.home)
        command = [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord"]
        try:
            done = subprocess.run(
                [*command, "-c", str(self._layout.supervisor_file)],
                cwd=ROOT,
                env=clean,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LAUNCH_S,
            )
        except subprocess.TimeoutExpired as error:
            raise StackError(f"supervisord didn't start within {LAUNCH_S:.0f} s") from error
        if done.returncode != 0:
            raise StackError(f"supervisord can't be started: {(done.stderr or done.stdout).strip()}")
        deadline = time.monotonic() + LAUNCH_S
        while not self.running():
            if time.monotonic() > deadline:
                raise StackError(f"supervisord doesn't answer; see {self._layout.supervisor_log}")
            time.sleep(0.05)

    def apply(self) -> None:
        """Bring the running supervisord to what its file says now: only what changed is restarted.

        Raises:
            StackError: it refuses, or doesn't answer.
        """
        try:
            ((added, changed, removed),) = self._call("reloadConfig")
        except xmlrpc.client.Fault as error:
            raise StackError(f"supervisord refuses its new configuration: {error.faultString}") from error
        for name in (*changed, *removed):
            self.stop(name)
            self._call("removeProcessGroup", name)
        for name in (*added, *changed):
            self._call("addProcessGroup", name)

    def start(self, name: str) -> None:
        """Start a process unless it is up; raise StackError when supervisord doesn't answer."""
        with contextlib.suppress(xmlrpc.client.Fault):
            self._call("startProcess", name, False)

    def stop(self, *names: str) -> None:
        """Stop processes, all at once, and wait until they are gone.

        Raises:
            StackError: one isn't gone after a minute, or supervisord doesn't answer.
        """
        for name in names:
            with contextlib.suppress(xmlrpc.client.Fault):
                self._call("stopProcess", name, False)
        deadline = time.monotonic() + STOP_S
        while True:
            # Each question also wakes supervisord, which else looks after its children once a second.
            states = self.processes()
            left = [name for name in names if name in states and states[name].state not in _GONE]
            if not left:
                return
            if time.monotonic() > deadline:
                raise StackError(f"{left[0]} doesn't stop; see {self._layout.log_file(left[0])}")
            time.sleep(0.05)

    def pid(self) -> int:
        """Return supervisord's process id, or 0."""
        try:
            pid = int(self._layout.supervisor_pid_file.read_text("utf-8"))
            process = psutil.Process(pid)
            mine = process.environ().get(MARKER) == str(self._layout.home)
            return pid if mine and alive(process) else 0
        except (OSError, ValueError, psutil.Error):
            return 0

    def shut_down(self) -> None:
        """Stop supervisord and what it still runs; return when it is gone, or at once when it doesn't answer.

        Raises:
            StackError: it answered and isn't gone after a minute.
        """
        pid = self.pid()
        try:
            self._call("shutdown")
        except (StackError, xmlrpc.client.Error):
            return
        deadline = time.monotonic() + STOP_S
        while pid and self.pid() == pid:
            if time.monotonic() > deadline:
                raise StackError(
                    f"supervisord (process {pid}) doesn't stop; see {self._layout.supervisor_log}"
                )
            time.sleep(0.05)


_EXIT = re.compile(
    r"^(?P<time>[\d-]+ [\d:]+),\d+ \w+ exited: (?P<name>\S+) \((?P<how>.*?)(; (not )?expected)?\)$"
)
_LAUNCH = re.compile(r" supervisord started with pid \d+$")


def crashes(layout: Layout) -> dict[str, Crashes]:
    """Return, by process, how often each ended by itself since supervisord started: its log is the record."""
    found: dict[str, Crashes] = {}
    log = layout.supervisor_log
    for path in (log.with_name(log.name + ".1"), log):
        try:
            lines = path.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if _LAUNCH.search(line):
                found.clear()
            elif match := _EXIT.match(line):
                before = found.get(match["name"], Crashes())
                found[match["name"]] = Crashes(before.count + 1, f"{match['how']} at {match['time']}")
    return found


def alive(process: psutil.Process) -> bool:
    """Say whether a process still does something; one that only waits for its parent to notice doesn't."""
    try:
        if not process.is_running() or process.status() != psutil.STATUS_ZOMBIE:
            return process.is_running()
        # Its first thread is gone; as long as others are on their way out, they hold its files and ports.
        return sum(1 for _ in Path(f"/proc/{process.pid}/task").iterdir()) > 1
    except (psutil.Error, OSError):
        return False


def kill(*processes: psutil.Process) -> None:
    """End processes as ``kill -9`` does, and return when they are gone.

    Raises:
        StackError: one is stuck in the kernel.
    """
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + STOP_S
    while left := [process.pid for process in processes if alive(process)]:
        if time.monotonic() > deadline:
            raise StackError(f"process {left[0]} doesn't end though it was killed")
        time.sleep(0.01)


def replace_file(path: Path, text: str) -> bool:
    """Write a private file where its text differs; return whether it did."""
    with contextlib.suppress(OSError):
        if path.read_text("utf-8") == text:
            return False
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True
