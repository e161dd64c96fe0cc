"""The stack as one thing: up, down, and waiting for it."""

import contextlib
import fcntl
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from deploy.local import fetch, health, monitoring, preparation, status, topology
from deploy.local.errors import StackError
from deploy.local.layout import Options, cache_folder
from deploy.local.ports import holders, members
from deploy.local.supervision import configuration, crashes, kill, replace_file
from deploy.local.topology import Process
from deploy.local.view import StackView
from libs.common.errors import Precondition
from libs.common.etcd.binary import find_etcd

HEALTHY_S = 120.0
"""Seconds that a started stack has to become healthy."""
HOPELESS = 3
"""A service that ended so often while it was waited for won't come up."""

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Tell nobody."""


class Stack(StackView):
    """One local stack.

    Usable as a context manager, which takes it down at the end; it is started by ``up``, not by entering.

    Args:
        home: where all of its state lies; ``ISTHMUS_HOME`` or ``var`` in the checkout where None.
        port_offset: moves every port by so much.
        without: what to leave out, of `topology.OPTIONAL`; the scheduler takes etcd and the runner along.
        tls: whether the gateway serves TLS, by the development authority.
        otlp_endpoint: host:port that the services send their traces to (OTLP over gRPC).
        environ: the environment that services are configured from and downloads go by.

    Of ``port_offset``, ``without``, ``tls`` and ``otlp_endpoint``, what is None is as the stack was started
    with and not taken down since, or else 0, nothing, False and none.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # ---- what it consists of ----

    def processes(self, say: Say = _silent) -> list[Process]:
        """Return the processes to start; what isn't to be had here is left out and noted in ``notes``.

        Args:
            say: told when something has to be fetched first.

        Raises:
            StackError: there is no etcd for the scheduler.
        """
        options = self._wanted()
        found = topology.services(self.layout, options, self._environ)
        if "scheduler" not in options.without:
            found.insert(0, topology.etcd(self._find_etcd(), self.layout, options))
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

    @staticmethod
    def _find_etcd() -> Path:
        try:
            return find_etcd()
        except Precondition as error:
            raise StackError(
                f"{error}; or leave the scheduler out: make up ARGS='--without scheduler'"
            ) from error

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
            # Before the launch: from there on they are what it runs with, also when this command is ended.
            self.layout.write_options(options)
            self._launch(processes, say)
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
            self.layout.clear()
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
                reason = self._fault(process) if state and state.up else status.why_down(state)
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
        services = self._services()
        (gateway,) = (process for process in services if process.name == "gateway")
        behind = [process for process in services if process.behind_the_door]
        while not health.fault(gateway, self.ca_file):
            reason = health.fault_at_the_door(gateway, behind, self.ca_file, self.admin_key)
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
