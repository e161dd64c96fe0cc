"""A client of the session's etcd, and a prefix of each test's own in it."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.etcd import EtcdClient
from libs.common.etcd.testing import EtcdServer, etcd_client

_numbers = itertools.count(1)


@pytest_asyncio.fixture
async def client(etcd_server: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with etcd_client(etcd_server, timeout_s=30.0) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"/test/{next(_numbers)}/"


@pytest_asyncio.fixture
async def own_server(etcd_server: EtcdServer, tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """A server of the test's own, to be stopped and killed."""
    async with EtcdServer(tmp_path) as server:
        yield server
