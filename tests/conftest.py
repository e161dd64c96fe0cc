"""What all tests share: a PostgreSQL and an etcd, started at first use where they are installed."""

import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from libs.common.errors import Precondition
from libs.common.etcd import find_etcd
from libs.common.etcd.testing import EtcdServer, running_etcd
from libs.common.sql.testing import URL_VARIABLE, find_postgres, own_schema, running_postgres

# The same examples each time, so that a change is judged by what it changes; --hypothesis-profile=default
# draws others.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start, also where the tests themselves run in the background of a script."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL; a test that asks for it is skipped where there is none."""
    given = os.environ.get(URL_VARIABLE)
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL: its driver isn't installed (the extra `postgres`)")
    if given:
        yield given
        return
    programs = find_postgres()
    if programs is None:
        pytest.skip(f"PostgreSQL: not installed (Debian: apt-get install postgresql), nor {URL_VARIABLE} set")
    with running_postgres(programs) as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql: str) -> Iterator[str]:
    """The URL of an empty schema of the test's own."""
    with own_schema(postgresql) as url:
        yield url


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """An etcd for all tests that neither stop it nor mind other keys in it; each uses a prefix of its own."""
    try:
        find_etcd()
    except Precondition as missing:
        pytest.skip(missing.message)
    with running_etcd() as server:
        yield server
