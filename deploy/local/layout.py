"""Where things lie under the home of a stack, and what the stack was started with."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.local.errors import StackError

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_SOCKET = 90
"""Bytes that are safe in a Unix socket's path: the kernel takes 107, and supervisord appends its process
id."""


def default_home(environ: Mapping[str, str]) -> Path:
    """Return the home that the environment names (``ISTHMUS_HOME``), else ``var`` in the checkout."""
    return Path(environ.get("ISTHMUS_HOME") or ROOT / "var").absolute()


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where downloads are kept, whatever the home: ``ISTHMUS_CACHE``, else ``var/cache``."""
    return Path(environ.get("ISTHMUS_CACHE") or ROOT / "var" / "cache").absolute()


@dataclass(frozen=True, slots=True)
class Options:
    """What a stack is started with; kept until it is taken down, so that no later command need repeat it."""

    port_offset: int = 0
    without: tuple[str, ...] = ()
    tls: bool = False
    otlp_endpoint: str = ""
    """host:port that services send their traces to; none where empty."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths under a stack's home."""

    home: Path

    @property
    def run_dir(self) -> Path:
        """What is there only while the stack runs."""
        return self.home / "run"

    @property
    def log_dir(self) -> Path:
        """One log file per process."""
        return self.home / "log"

    @property
    def identity_dir(self) -> Path:
        """``<service>.key``, the private keys of the services."""
        return self.home / "identity"

    @property
    def trust_dir(self) -> Path:
        """``<service>.pub``, the public keys that every service believes."""
        return self.identity_dir / "trust"

    @property
    def tls_dir(self) -> Path:
        """The development authority and what it issued."""
        return self.home / "tls"

    @property
    def ca_file(self) -> Path:
        """The certificate of the development authority: to give to clients."""
        return self.tls_dir / "ca.pem"

    @property
    def admin_key_file(self) -> Path:
        """The API key of the stack's operator."""
        return self.home / "admin.key"

    @property
    def supervisor_file(self) -> Path:
        """Supervisord's configuration."""
        return self.run_dir / "supervisord.conf"

    @property
    def supervisor_log(self) -> Path:
        """Supervisord's own log: starts, exits, restarts."""
        return self.log_dir / "supervisord.log"

    @property
    def supervisor_pid_file(self) -> Path:
        """Supervisord's process id."""
        return self.run_dir / "supervisord.pid"

    @property
    def options_file(self) -> Path:
        """What the stack was started with; gone when it was taken down."""
        return self.run_dir / "options.json"

    @property
    def lock_file(self) -> Path:
        """Held by a command that changes the stack."""
        return self.home / "lock"

    @property
    def socket(self) -> Path:
        """Supervisord's control socket; elsewhere than in the home where that has a long path."""
        inside = self.run_dir / "supervisor.sock"
        if len(os.fsencode(inside)) <= LONGEST_SOCKET:
            return inside
        name = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"isthmus-{os.getuid()}-{name}" / "supervisor.sock"

    def data_dir(self, name: str) -> Path:
        """Return where the process ``name`` keeps its data."""
        return self.home / name

    def log_file(self, name: str) -> Path:
        """Return what the process ``name`` writes to its standard output and error."""
        return self.log_dir / f"{name}.log"

    def make(self) -> None:
        """Make the folders, for this user alone.

        Raises:
            StackError: the home isn't a folder of this user's, or can't be made.
        """
        try:
            for folder in (
                self.home,
                self.run_dir,
                self.log_dir,
                self.identity_dir,
                self.trust_dir,
                self.tls_dir,
            ):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.socket.parent.mkdir(mode=0o700, exist_ok=True)
            # A folder with a known name in a shared place may have been made by somebody else.
            status = self.socket.parent.lstat()
        except OSError as error:
            raise StackError(
                f"the stack's home {self.home} can't be made: {error}; choose another with --home"
            ) from error
        if status.st_uid != os.getuid():
            raise StackError(
                f"{self.socket.parent} belongs to another user; remove it, or choose another --home"
            )

    def clear(self) -> None:
        """Remove what is there only while the stack runs; the supervisor must be gone."""
        self.options_file.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self.run_dir:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()

    def read_options(self) -> Options | None:
        """Return what the stack was last started with, or None when that isn't known."""
        try:
            found = json.loads(self.options_file.read_text("utf-8"))
            return Options(
                int(found["port_offset"]),
                tuple(found["without"]),
                bool(found["tls"]),
                str(found.get("otlp_endpoint", "")),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_options(self, options: Options) -> None:
        """Keep what the stack is started with."""
        self.options_file.write_text(json.dumps(asdict(options)), "utf-8")
