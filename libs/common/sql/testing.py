"""For tests: a PostgreSQL of one's own, and schemas in it to throw away.

The server is private to the process that starts it: its files are in a folder of its own, only its Unix
socket there leads to it, and it ends with the process. It runs without fsync: what tests need to know is what
the database does, not what a power cut does.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from libs.common.sql.engine import open_engine

URL_VARIABLE = "ISTHMUS_TEST_POSTGRES_URL"
"""Names a PostgreSQL to use in place of a private one: postgresql+psycopg://USER@HOST/DATABASE."""
_START_S = 60.0
_STOP_S = 30.0


def find_postgres() -> Path | None:
    """Return the folder of this machine's newest PostgreSQL server programs, or None."""
    debian = Path("/usr/lib/postgresql")
    numbered = [d for d in debian.glob("*") if d.name.isdecimal()]
    folders = [d / "bin" for d in sorted(numbered, key=lambda d: int(d.name), reverse=True)]
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    for folder in folders:
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres")):
            return folder
    return None


@contextlib.contextmanager
def running_postgres(programs: Path) -> Iterator[str]:
    """Start a private server with the programs of `find_postgres`, and yield its URL.

    As root it runs as an ordinary user, `postgres` or else `nobody`: it refuses to run as root.

    Raises:
        RuntimeError: when it doesn't start; the message holds what it said.
    """
    # Not where the tests put their files: that user must get in, and a socket's path has to be short.
    folder = Path(tempfile.mkdtemp(prefix="isthmus-postgres-", dir="/tmp"))
    user = _ordinary_user() if os.geteuid() == 0 else None
    try:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        with _server(programs, folder, user) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ordinary_user() -> pwd.struct_passwd:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


@contextlib.contextmanager
def _server(programs: Path, folder: Path, user: pwd.struct_passwd | None) -> Iterator[str]:
    data, log = folder / "data", folder / "log"

    def start(*command: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=folder,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )

    log.touch()
    initialise = start(
        str(programs / "initdb"),
        f"--pgdata={data}",
        "--username=isthmus",
        "--auth=trust",  # the folder is its user's alone
        "--encoding=UTF8",
        "--no-locale",
        "--no-sync",
    )
    if initialise.wait(_START_S) != 0:
        raise RuntimeError(f"initdb failed:\n{log.read_text()}")
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "shared_buffers": "16MB",
        "max_connections": "100",
    }
    # A test run that is killed must not leave it behind.
    setpriv = shutil.which("setpriv")
    server = start(
        *([setpriv, "--pdeathsig", "QUIT"] if setpriv else []),
        str(programs / "postgres"),
        f"-D{data}",
        *(f"-c{name}={value}" for name, value in settings.items()),
    )
    try:
        url = f"postgresql+psycopg://isthmus@/postgres?host={folder}"
        _wait_until_it_answers(url, server, log)
        yield url
    finally:
        if server.poll() is None:
            server.terminate()
            try:
                server.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                server.send_signal(3)  # SIGQUIT: it stops at once
                server.wait(_STOP_S)


def _wait_until_it_answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    engine = open_engine(url)
    deadline = time.monotonic() + _START_S
    try:
        while True:
            try:
                with engine.connect():
                    return
            except sa.exc.OperationalError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL didn't start:\n{log.read_text()}") from None
            time.sleep(0.05)
    finally:
        engine.dispose()


@contextlib.contextmanager
def own_schema(url: str) -> Iterator[str]:
    """Make an empty schema in the database at `url`; yield a URL at which nothing else is seen; drop it."""
    schema = f"test_{uuid.uuid4().hex}"
    engine = open_engine(url)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        try:
            own = sa.make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
            yield own.render_as_string(hide_password=False)
        finally:
            with engine.begin() as connection:
                connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
    finally:
        engine.dispose()
