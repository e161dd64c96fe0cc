"""TLS both ways: the common name of the client's certificate is etcd's user."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from etcd_stubs import auth_pb2, rpc_pb2, rpc_pb2_grpc

from deploy.local.certificates import Authority
from libs.common.client import client_credentials
from libs.common.errors import Forbidden, Unavailable
from libs.common.etcd import Compare, EtcdClient, Get, Leadership, Put, wire
from libs.common.etcd.testing import Certificates, EtcdServer, etcd_client


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest_asyncio.fixture
async def tls_server(
    etcd_server: EtcdServer, authority: Authority, tmp_path: Path
) -> AsyncIterator[EtcdServer]:
    key, certificate = authority.issue("etcd")
    files = Certificates(authority.certificate_file, certificate, key)
    async with EtcdServer(tmp_path, certificates=files) as server:
        yield server


def credentials_of(authority: Authority, name: str) -> grpc.ChannelCredentials:
    key, certificate = authority.issue(name)
    return client_credentials(authority.certificate_file, certificate, key)


async def authorise(client: EtcdClient, user: str, prefix: str) -> None:
    """Turn authentication on: root may do everything, `user` what is under `prefix`."""
    stub = rpc_pb2_grpc.AuthStub(client._members.preferred.channel)
    first, end = wire.prefix_range(prefix)
    permission = auth_pb2.Permission(permType=auth_pb2.Permission.READWRITE, key=first, range_end=end)
    await stub.RoleAdd(rpc_pb2.AuthRoleAddRequest(name="role"))
    await stub.RoleGrantPermission(rpc_pb2.AuthRoleGrantPermissionRequest(name="role", perm=permission))
    for name, role in (("root", "root"), (user, "role")):
        await stub.UserAdd(rpc_pb2.AuthUserAddRequest(name=name, password="unused"))
        await stub.UserGrantRole(rpc_pb2.AuthUserGrantRoleRequest(user=name, role=role))
    await stub.AuthEnable(rpc_pb2.AuthEnableRequest())


async def test_a_user_may_do_what_its_certificate_allows(
    authority: Authority, tls_server: EtcdServer
) -> None:
    credentials = credentials_of(authority, "scheduler")
    async with etcd_client(tls_server, timeout_s=30.0, credentials=credentials) as client:
        await client.put("/other/a", b"")
        await authorise(client, "scheduler", "/isthmus/")
        revision = await client.put("/isthmus/a", b"1")
        assert [kv.value for kv in (await client.range("/isthmus/")).items] == [b"1"]
        async with aclosing(client.watch("/isthmus/", revision)) as batches:
            assert [event.kv.key for event in (await anext(batches)).events] == ["/isthmus/a"]
        async with Leadership(client, "/isthmus/leader", ttl_s=30, identity="me").hold() as term:
            assert (await client.txn([term.compare], [Put("/isthmus/a", b"2")])).succeeded
        for forbidden in (
            client.get("/other/a"),
            client.range("/"),
            client.put("/other/a", b""),
            client.txn([Compare.value("/other/a", b"")], [Get("/isthmus/a")]),
        ):
            with pytest.raises(Forbidden):
                await forbidden
        async with aclosing(client.watch("/other/", 1)) as batches:
            with pytest.raises(Forbidden):
                await anext(batches)


async def test_a_stranger_reaches_nothing(
    authority: Authority, tls_server: EtcdServer, tmp_path: Path
) -> None:
    strange = Authority(tmp_path / "strange")
    key, certificate = strange.issue("scheduler")
    for credentials in (
        None,
        client_credentials(authority.certificate_file),
        client_credentials(authority.certificate_file, certificate, key),
        credentials_of(strange, "scheduler"),
    ):
        async with etcd_client(tls_server, timeout_s=0.5, credentials=credentials) as client:
            with pytest.raises(Unavailable):
                await client.get("/a")
