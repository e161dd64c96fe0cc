"""The containers of docker-compose as processes of this machine: their commands and settings, free ports.

What Docker does and this doesn't: images, mounts, networks, limits, users.
"""

import contextlib
import os
import pwd
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.docker import probe
from deploy.docker.keys import Holder, make
from libs.common.etcd.binary import find_etcd
from tests.integration.system.world import until
from tests.unit.deploy.manifests.containers import COMPOSE, Container, compose

STOP_S = 60.0
PORTS = re.compile(r"(?<![\w.])(?:[a-z][a-z-]*|0\.0\.0\.0|127\.0\.0\.1):(\d{4})\b")


@dataclass(slots=True)
class Machine:
    """Containers that run as processes."""

    home: Path
    postgres: Path
    """Folder of PostgreSQL's programs."""
    containers: Mapping[str, Container] = field(default_factory=compose)
    _ports: dict[str, int] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def port(self, inside: str) -> int:
        """Return the port here for one of the containers', the same each time."""
        if inside not in self._ports:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                self._ports[inside] = taken.getsockname()[1]
        return self._ports[inside]

    def path(self, name: str, inside: str) -> str:
        """Return the path here of what a container finds at a path."""
        mounts = self.containers[name].mounts
        mount = max((each for each in mounts if f"{inside}/".startswith(f"{each}/")), key=len, default=None)
        if mount is None:
            return inside
        source, rest = mounts[mount], inside.removeprefix(mount)
        if source.startswith("."):
            return f"{(COMPOSE / source).resolve()}{rest}"
        keys = {
            volume: path.removeprefix("/keys/") for path, volume in self.containers["keys"].mounts.items()
        }
        folder = self.home / "keys" / keys[source] if source in keys else self.home / f"{name}{mount}"
        if source not in keys:
            folder.mkdir(parents=True, exist_ok=True)
        return f"{folder}{rest}"

    def here(self, name: str, text: str) -> str:
        """Return a setting or an argument of a container with the paths and the addresses of this machine."""
        text = PORTS.sub(lambda found: f"127.0.0.1:{self.port(found.group(1))}", text)
        return re.sub(
            r"(?<![\w.:/])/(?:run|var|tmp|etc)(?:/[\w.-]+)*",
            lambda found: self.path(name, found.group()),
            text,
        )

    def environment(self, name: str) -> dict[str, str]:
        """Return what the process of a container finds in its environment."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ISTHMUS_", "PG"))}
        clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
        for key, value in self.containers[name].environment.items():
            if key.endswith("_PORT"):
                value = str(self.port(value))
            clean[key] = self.here(name, value).replace("0.0.0.0", "127.0.0.1")
        return clean

    def command(self, name: str) -> list[str]:
        """Return what runs in a container, as it is run here."""
        return [self.here(name, each) for each in self.containers[name].command]

    def log(self, name: str) -> str:
        """Return the end of what a process wrote."""
        return (self.home / f"{name}.log").read_text(errors="replace")[-3000:]

    def start(self, name: str, *command: str, user: pwd.struct_passwd | None = None) -> None:
        """Start the process of a container; with another command where one is given."""
        identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command or self.command(name),
                env=self.environment(name),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **identity,  # type: ignore[arg-type]
            )

    def well(self, name: str) -> bool:
        """Ask as the container's health check does; fail when the process has ended."""
        status = self._processes[name].poll()
        assert status is None, f"{name} ended with {status}: {self.log(name)}"
        command = list(self.containers[name].probe)
        if command[1:3] == ["-m", "deploy.docker.probe"]:
            return probe.main(command[3:], self.environment(name)) == 0
        asked = [self.here(name, each) for each in command]
        if name == "postgres":
            # A connection string has its port apart.
            asked = [str(self.postgres / asked[0]), f"{asked[1]} port={self.port('5432')}", *asked[2:]]
        else:
            asked[0] = str(find_etcd().with_name("etcdctl"))
        done = subprocess.run(
            asked, env={**self.environment(name), "ETCDCTL_API": "3"}, capture_output=True, timeout=60
        )
        return done.returncode == 0

    def wait(self, *names: str) -> None:
        """Wait until these are healthy."""
        for name in names:
            until(f"{name} to be well", lambda name=name: self.well(name), lambda name=name: self.log(name))

    def make_keys(self) -> None:
        """Do what the container `keys` does."""
        holders = [Holder.parse(text) for text in self.containers["keys"].command[4:]]
        if os.geteuid() == 0:
            uid = postgres_user().pw_uid
            holders = [Holder(h.name, uid if h.name == "postgres" else 0, h.service) for h in holders]
        make(self.home / "keys", holders, own=os.geteuid() == 0)

    def start_postgres(self) -> None:
        """Do what the image of PostgreSQL does at its first start, then serve."""
        user = postgres_user() if os.geteuid() == 0 else None
        data, sockets = (self.home / f"postgres-{name}" for name in ("data", "sockets"))
        sockets.mkdir()
        if user is not None:
            for folder in (self.home, self.home / "keys"):
                folder.chmod(0o711)
            os.chown(sockets, user.pw_uid, user.pw_gid)
            data.mkdir()
            os.chown(data, user.pw_uid, user.pw_gid)
        made = [str(self.postgres / "initdb"), f"--pgdata={data}", "--username=postgres", "--no-sync"]
        self.start("postgres", *made, user=user)
        assert self._processes["postgres"].wait(STOP_S) == 0, self.log("postgres")
        # The image keeps its socket where Docker mounts memory; where the data are it learns from PGDATA.
        here = [
            f"-D{data}",
            f"-cunix_socket_directories={sockets}",
            f"-cport={self.port('5432')}",
            "-cfsync=off",
        ]
        served = [str(self.postgres / "postgres"), *self.command("postgres")[1:], *here]
        self.start("postgres", *served, user=user)
        script = COMPOSE / "postgres" / "databases.sql"
        ask = [
            str(self.postgres / "psql"),
            f"--host={sockets}",
            f"--port={self.port('5432')}",
            "--username=postgres",
        ]
        self.wait("postgres")
        subprocess.run(
            [*ask, "--set=ON_ERROR_STOP=1", f"--file={script}"], check=True, capture_output=True, timeout=60
        )

    def start_etcd(self) -> None:
        """Serve etcd."""
        command = [str(find_etcd()), *self.command("etcd")[1:]]
        self.start("etcd", *command)

    def stop(self) -> None:
        """End every process: ours at once, then what they keep their state in."""
        kept = ("etcd", "postgres")
        for names in ([name for name in self._processes if name not in kept], kept):
            processes = {name: self._processes[name] for name in names if name in self._processes}
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
            late = [name for name, process in processes.items() if process.poll() is None]
            for name in late:
                processes[name].kill()
                processes[name].wait()
            assert not late, [(name, self.log(name)) for name in late]


def postgres_user() -> pwd.struct_passwd:
    """Return the user whom PostgreSQL runs as when we are root, whom it refuses."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


@contextlib.contextmanager
def running(home: Path, postgres: Path) -> Iterator[Machine]:
    """Give a machine on which all containers of ours are well; nothing of it runs afterwards."""
    machine = Machine(home, postgres)
    try:
        machine.make_keys()
        machine.start_etcd()
        machine.start_postgres()
        names = [name for name, each in machine.containers.items() if each.is_ours]
        for name in names:
            machine.start(name)
        machine.wait("etcd", *names)
        yield machine
    finally:
        machine.stop()
