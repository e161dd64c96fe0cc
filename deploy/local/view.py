"""What can be seen of a stack, running or not, without changing it."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.local import health, status, topology
from deploy.local.errors import StackError
from deploy.local.layout import Layout, Options, default_home
from deploy.local.ports import members
from deploy.local.status import Row
from deploy.local.supervision import Supervisor
from deploy.local.topology import Process

LOG_LINES = 15


class StackView:
    """A stack as it is; `Stack` also changes it, and says what the arguments are."""

    def __init__(
        self,
        home: Path | None = None,
        port_offset: int | None = None,
        *,
        without: Iterable[str] | None = None,
        tls: bool | None = None,
        otlp_endpoint: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self.layout = Layout(home.absolute() if home else default_home(self._environ))
        asked = {
            "port_offset": port_offset,
            "without": None if without is None else tuple(sorted(set(without))),
            "tls": tls,
            "otlp_endpoint": otlp_endpoint,
        }
        self._asked: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        self._supervisor = Supervisor(self.layout)
        self.notes: list[str] = []

    def running(self) -> bool:
        """Say whether the stack runs: its supervisor, whatever the state of the services."""
        return self._supervisor.running()

    @property
    def options(self) -> Options:
        """What the stack was started with and not taken down since, or would be."""
        return self._started_with() or self._wanted()

    def _started_with(self) -> Options | None:
        # They outlive a supervisor that was killed, and go with `down`.
        return self.layout.read_options()

    def _wanted(self) -> Options:
        return replace(self._started_with() or Options(), **self._asked)

    def _services(self) -> list[Process]:
        return topology.services(self.layout, self.options, self._environ)

    def _etcd(self, binary: Path) -> list[Process]:
        left_out = "scheduler" in self.options.without
        return [] if left_out else [topology.etcd(binary, self.layout, self.options)]

    def _fault(self, process: Process) -> str:
        """Return why a process doesn't serve, or "" when it does."""
        if not process.node:
            return health.fault(process, self.ca_file)
        (gateway,) = (each for each in self._services() if each.name == "gateway")
        return health.fault_of_runner(process, gateway, self.ca_file, self.admin_key)

    def _running_processes(self) -> list[Process]:
        """Return the processes that the supervisor knows of, without fetching anything."""
        known = self._supervisor.processes()
        return [process for process in self._everything() if process.name in known]

    def _everything(self) -> list[Process]:
        return [
            *self._etcd(Path("etcd")),
            *self._services(),
            topology.prometheus(Path("prometheus"), self.layout, self.options, ""),
            topology.grafana(Path("grafana"), self.layout, self.options, ""),
        ]

    @property
    def endpoints(self) -> dict[str, str]:
        """Where the stack listens: each service's gRPC address by name, and ``gateway-http``."""
        services = self._services()
        found = {process.name: process.endpoints[0].address for process in services if not process.node}
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

    def _named(self, known: Iterable[Process], name: str) -> Process:
        by_name = {process.name: process for process in known}
        if name not in by_name:
            there_are = ", ".join(by_name) or "none: it isn't running; start it with: make up"
            raise StackError(f"the stack has no process {name!r}; there are {there_are}")
        return by_name[name]

    # ---- while it runs ----

    def status(self) -> list[Row]:
        """Return one row per process; none when the stack doesn't run.

        Of a stack whose supervisor is gone, or doesn't answer, those are what it left behind.
        """
        if self.running():
            states, processes = self._supervisor.processes(), self._running_processes()
            return status.rows(self.layout, states, processes, self._fault)
        return status.left_behind(members(str(self.layout.home)), self._everything())

    def pid(self, name: str) -> int:
        """Return the process id of a process of the stack, or 0 while it has none."""
        self._named(self._running_processes(), name)
        return self._supervisor.processes()[name].pid

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
        return [endpoint.port for process in self._everything() for endpoint in process.endpoints]
