"""The stack as one thing: up, down, what runs, where it listens."""

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from deploy.local import fetch, health, monitoring, preparation, status, topology
from deploy.local.errors import StackError
from deploy.local.layout import Layout, Options, cache_folder, default_home
from deploy.local.ports import holders, members
from deploy.local.status import Row
from deploy.local.supervision import Supervisor, configuration, crashes, kill, replace_file
from deploy.local.topology import Process

HEALTHY_S = 60.0
"""Seconds that a started stack has to become healthy."""
HOPELESS = 3
"""A service that ended so often while it was waited for won't come up."""
LOG_LINES = 15

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Tell nobody."""


class Stack:
    """One local stack.

    Usable as a context manager, which takes it down at the end; it is started by ``up``, not by entering.

    Args:
        home: where all of its state lies; ``ISTHMUS_HOME`` or ``var`` in the checkout where None.
        port_offset: moves every port by so much.
        without: of Prometheus and Grafana, what to leave out.
        tls: whether the gateway serves TLS, by the development authority.
        environ: the environment that services are configured from and downloads go by.

    Of ``port_offset``, ``without`` and ``tls``, what is None is as the running stack was started, or else 0,
    nothing and False.
    """

    def __init__(
        self,
        home: Path | None = None,
        port_offset: int | None = None,
        *,
        without: Iterable[str] | None = None,
        tls: bool | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self.layout = Layout(home.absolute() if home else default_home(self._environ))
        asked = {
            "port_offset": port_offset,
            "without": None if without is None else tuple(sorted(set(without))),
            "tls": tls,
        }
        self._asked: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        self._supervisor = Supervisor(self.layout)
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # ---- what it consists of ----

    def running(self) -> bool:
        """Say whether the stack runs: its supervisor, whatever the state of the services."""
        return self._supervisor.running()

    @property
    def options(self) -> Options:
        """What the stack was started with, or would be."""
        return self._started_with() or self._wanted()

    def _started_with(self) -> Options | None:
        return self.layout.read_options() if self.running() else None

    def _wanted(self) -> Options:
        return replace(self._started_with() or Options(), **self._asked)

    def _services(self) -> list[Process]:
        return topology.services(self.layout, self.options, self._environ)

    def processes(self, say: Say = _silent) -> list[Process]:
        """Return the processes to start; what isn't to be had here is left out and noted in ``notes``.

        Args:
            say: told when something has to be fetched first.
        """
        options = self._wanted()
        found = topology.services(self.layout, options, self._environ)
        self.notes = []
        if "prometheus" not in options.without:
            try:
                binary = fetch.find_prometheus(cache_folder(self._environ), say)
                digest = monitoring.write_prometheus(self.layout, found)
                found.append(topology.prometheus(binary, self.layout, options, digest))
            except StackError as error:
                self.notes.append(f"prometheus isn't part of this stack: {error}")
        if "grafana" not in options.without:
            try:
                binary = fetch.find_grafana()
                digest = monitoring.write_grafana(self.layout)
                found.append(topology.grafana(binary, self.layout, options, digest))
            except StackError as error:
                self.notes.append(f"grafana isn't part of this stack: {error}")
        return found

    def _running_processes(self) -> list[Process]:
        """Return the processes that the supervisor knows of, without fetching anything."""
        known = self._supervisor.processes()
        options = self.options
        everything = [
            *self._services(),
            topology.prometheus(Path("prometheus"), self.layout, options, ""),
            topology.grafana(Path("grafana"), self.layout, options, ""),
        ]
        return [process for process in everything if process.name in known]

    @property
    def endpoints(self) -> dict[str, str]:
        """Where the stack listens: each service's gRPC address by name, and ``gateway-http``."""
        services = self._services()
        found = {process.name: process.endpoints[0].address for process in services}
        (gateway,) = (process for process in services if process.name == "gateway")
        return found | {"gateway-http": gateway.endpoints[1].address}

    @property
    def gateway(self) -> str:
        """The gateway's gRPC address: where clients go."""
        return self.endpoints["gateway"]

    @property
    def admin_key_file(self) -> Path:
        """The file that holds the operator's API key."""
        return self.layout.admin_key_file

    @property
    def admin_key(self) -> str:
        """The operator's API key.

        Raises:
            StackError: the stack has never been up.
        """
        try:
            return self.layout.admin_key_file.read_text("utf-8").strip()
        except OSError as error:
            raise StackError(
                f"there is no admin key yet ({error}); start the stack first: make up"
            ) from error

    @property
    def ca_file(self) -> Path:
        """The certificate of the development authority."""
        return self.layout.ca_file

    # ---- up and down ----

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the stack for one command that changes it."""
        with self.layout.lock_file.open("w") as file:
            deadline = time.monotonic() + HEALTHY_S * 2
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StackError(
                            f"another command has been changing the stack in {self.layout.home} for long; "
                            "wait for it or end it, then try again"
                        ) from None
                time.sleep(0.1)
            yield

    def up(self, say: Say = _silent) -> list[Process]:
        """Bring the stack up and return its processes when each is healthy.

        What runs already and is to run as it is stays untouched, so that a second call is quick and changes
        nothing.

        Args:
            say: told what is being done.

        Raises:
            StackError: a port is taken, or a process doesn't become healthy; the text says which, and why.
        """
        self.layout.make()
        with self._locked():
            options = self._wanted()
            if not self._supervisor.running():
                self._end_leftovers(say)
            processes = self.processes(say)
            self._check_ports(processes)
            self._prepare(processes, options, say)
            self._launch(processes, say)
            self.layout.write_options(options)
            self._wait_healthy(processes, HEALTHY_S)
        return processes

    def _end_leftovers(self, say: Say) -> None:
        """End what a supervisor left behind that was killed."""
        left = members(str(self.layout.home))
        for process in left:
            say(f"ending process {process.pid}, left behind by a stack whose supervisor is gone")
        kill(*left)

    def _check_ports(self, processes: Iterable[Process]) -> None:
        wanted = {
            endpoint.port: (process, endpoint) for process in processes for endpoint in process.endpoints
        }
        taken = [
            f"  port {port} ({wanted[port][0].name}, {wanted[port][1].what}) is held by {holder}"
            for port, holder in holders(wanted).items()
            if holder.stack != str(self.layout.home)
        ]
        if taken:
            raise StackError(
                "\n".join(["the stack needs ports that are taken:", *taken])
                + "\nend that process, or move the whole stack: make up ARGS='--port-offset 100'"
            )

    def _prepare(self, processes: Iterable[Process], options: Options, say: Say) -> None:
        preparation.make_keys(self.layout)
        for process in processes:
            self.layout.data_dir(process.name).mkdir(mode=0o700, exist_ok=True)
        (gateway,) = (process for process in processes if process.name == "gateway")
        state = self._supervisor.processes().get("gateway")
        if not (state and state.up and self.admin_key_file.exists()):
            if state:
                self._supervisor.stop("gateway")
            say("checking the operator's API key")
            preparation.make_admin_key(self.layout, gateway)
        preparation.write_cli_settings(self.layout, options, gateway)

    def _launch(self, processes: list[Process], say: Say) -> None:
        changed = replace_file(self.layout.supervisor_file, configuration(self.layout, processes))
        if not self._supervisor.running():
            say("starting " + ", ".join(process.name for process in processes))
            self._supervisor.launch(self._environ)
        elif changed:
            self._supervisor.apply()
        for name, process in self._supervisor.processes().items():
            if process.state in {"STOPPED", "EXITED", "FATAL"}:
                say(f"starting {name}")
                self._supervisor.start(name)

    def _stop(self, processes: Iterable[Process]) -> None:
        """Stop processes, those first that were started last: the gateway drains while the others serve."""
        in_order = sorted(processes, key=lambda process: -process.start_order)
        for _, together in itertools.groupby(in_order, key=lambda process: process.start_order):
            self._supervisor.stop(*(process.name for process in together))

    def down(self) -> bool:
        """Stop every process; return whether there was one.

        Raises:
            StackError: something doesn't stop.
        """
        if not self.layout.home.is_dir():
            return False
        with self._locked():
            ran = self._supervisor.pid() != 0
            # One that hangs is ended with the rest.
            if ran and self.running():
                self._stop(self._running_processes())
                self._supervisor.shut_down()
            left = members(str(self.layout.home))
            kill(*left)
            self.layout.options_file.unlink(missing_ok=True)
        return ran or bool(left)

    # ---- while it runs ----

    def _wait_healthy(self, processes: Iterable[Process], deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        before = crashes(self.layout)
        waiting = list(processes)
        while waiting:
            states = self._supervisor.processes()
            now = crashes(self.layout)
            for process in list(waiting):
                state = states.get(process.name)
                reason = health.fault(process, self.ca_file) if state and state.up else status.why_down(state)
                if not reason:
                    waiting.remove(process)
                    continue
                name = process.name
                ended = (now[name].count if name in now else 0) - (
                    before[name].count if name in before else 0
                )
                hopeless = ended >= HOPELESS or (state is not None and state.state == "FATAL")
                if hopeless or time.monotonic() > deadline:
                    last = "".join(f"\n  {line}" for line in self.log_tail(name))
                    raise StackError(f"{name} doesn't become healthy ({reason}); its last log lines:{last}")
            if waiting:
                time.sleep(0.05)
        self._wait_for_the_door(deadline)

    def _wait_for_the_door(self, deadline: float) -> None:
        """Return when the gateway, if it serves, reaches the services that serve."""
        by_name = {process.name: process for process in self._services()}
        gateway = by_name.pop("gateway")
        while not health.fault(gateway, self.ca_file):
            reason = health.fault_at_the_door(gateway, by_name.values(), self.ca_file, self.admin_key)
            if not reason:
                return
            if time.monotonic() > deadline:
                raise StackError(f"gateway serves, but {reason}; see {self.layout.log_file('gateway')}")
            time.sleep(0.05)

    def wait_healthy(self, *names: str, deadline_s: float = HEALTHY_S) -> None:
        """Return when the named processes (all where none is named) serve.

        Raises:
            StackError: one doesn't within ``deadline_s`` seconds; the text holds its last log lines.
        """
        known = self._running_processes()
        self._wait_healthy([self._named(known, name) for name in names] or known, deadline_s)

    def _named(self, known: Iterable[Process], name: str) -> Process:
        by_name = {process.name: process for process in known}
        if name not in by_name:
            there_are = ", ".join(by_name) or "none: it isn't running; start it with: make up"
            raise StackError(f"the stack has no process {name!r}; there are {there_are}")
        return by_name[name]

    def status(self) -> list[Row]:
        """Return one row per process; none when the stack doesn't run."""
        return status.rows(self.layout, self._supervisor.processes(), self._running_processes(), self.ca_file)

    def restart(self, *names: str) -> list[str]:
        """Stop and start the named processes (all where none is named); return their names once healthy.

        Raises:
            StackError: the stack doesn't run, or has no such process, or one doesn't come up again.
        """
        if not self.running():
            raise StackError("the stack isn't running; start it with: make up")
        with self._locked():
            known = self._running_processes()
            chosen = [self._named(known, name) for name in names] or known
            self._stop(chosen)
            for process in sorted(chosen, key=lambda process: process.start_order):
                self._supervisor.start(process.name)
            self._wait_healthy(chosen, HEALTHY_S)
        return [process.name for process in chosen]

    def pid(self, name: str) -> int:
        """Return the process id of a process of the stack, or 0 while it has none."""
        self._named(self._running_processes(), name)
        return self._supervisor.processes()[name].pid

    def kill(self, name: str) -> int:
        """End a process as ``kill -9`` does, and return the id that it had; another comes by itself.

        Raises:
            StackError: the process isn't up.
        """
        pid = self.pid(name)
        if not pid:
            raise StackError(f"{name} isn't up, so that it can't be killed")
        kill(psutil.Process(pid))
        return pid

    def log_files(self, *names: str) -> list[Path]:
        """Return the log files of the named processes, or of all.

        Raises:
            StackError: there is no such process, or nothing has been logged yet.
        """
        known = {path.stem: path for path in sorted(self.layout.log_dir.glob("*.log"))}
        unknown = [name for name in names if name not in known]
        if unknown or not known:
            there_are = ", ".join(known) or "none yet; start the stack with: make up"
            raise StackError(f"no log of {unknown[0] if unknown else 'anything'!r}; there are {there_are}")
        return [known[name] for name in names] or list(known.values())

    def log_tail(self, name: str, lines: int = LOG_LINES) -> list[str]:
        """Return the last lines that a process wrote."""
        try:
            with self.layout.log_file(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
                return file.read().decode("utf-8", errors="replace").splitlines()[-lines:]
        except OSError:
            return []

    def ports(self) -> list[int]:
        """Return every port that the stack may listen on."""
        monitored = [topology.shifted(port, self.options) for port in (topology.PROMETHEUS, topology.GRAFANA)]
        return [endpoint.port for process in self._services() for endpoint in process.endpoints] + monitored
