"""The client wheel in an empty environment, away from the checkout, against a real server."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from deploy.local.certificates import Authority
from deploy.stubs.build import ROOT, build
from isthmus.deployer.v1 import release_pb2, release_pb2_grpc, task_pb2, task_pb2_grpc

KEY = "isk_0123456789abcdef_secret"


@dataclass(frozen=True)
class Client:
    """An environment with the wheel and its dependencies in it."""

    python: Path
    folder: Path

    async def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the environment without blocking the server in this process."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

        def call() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [str(self.python), "-c", code, *arguments],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=90,
            )

        return await asyncio.to_thread(call)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("elsewhere")
    wheel = build(folder / "build")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    if uv.exists():
        install = [str(uv), "pip", "install", "--python", str(python)]
    else:
        install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    # Versions as pinned, so that what the tests of this checkout say doesn't change with the day.
    constraints = ["--constraint", str(ROOT / "requirements" / "device-agent.txt")]
    subprocess.run([*install, "--quiet", *constraints, str(wheel)], check=True)
    return Client(python, folder)


class Tasks(task_pb2_grpc.TaskServiceServicer):
    """Answers with what it was sent."""

    async def ListTasks(self, request, context):  # type: ignore[no-untyped-def] # noqa: N802
        seen = dict(context.invocation_metadata())
        if seen.get("authorization") != f"Bearer {KEY}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no key")
        name = f"{request.parent}/tasks/{'bounded' if context.time_remaining() is not None else 'unbounded'}"
        return task_pb2.ListTasksResponse(tasks=[task_pb2.Task(name=name)])


class Releases(release_pb2_grpc.ReleaseServiceServicer):
    async def WatchRelease(self, request, context):  # type: ignore[no-untyped-def] # noqa: N802
        seen = dict(context.invocation_metadata())
        for state in (seen.get("authorization", ""), "bounded" if context.time_remaining() else "unbounded"):
            yield release_pb2.WatchReleaseResponse(release=release_pb2.Release(name=state))


@dataclass(frozen=True)
class Server:
    plain: str
    secured: str
    ca_file: Path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    authority = Authority(tmp_path)
    key_file, certificate_file = authority.issue("gateway")
    server = grpc.aio.server()
    task_pb2_grpc.add_TaskServiceServicer_to_server(Tasks(), server)
    release_pb2_grpc.add_ReleaseServiceServicer_to_server(Releases(), server)
    credentials = grpc.ssl_server_credentials([(key_file.read_bytes(), certificate_file.read_bytes())])
    plain = server.add_insecure_port("127.0.0.1:0")
    secured = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield Server(f"127.0.0.1:{plain}", f"localhost:{secured}", authority.certificate_file)
    await server.stop(grace=None)


BLOCKING = """
import json, sys
from isthmus.client import connect
from isthmus.deployer.v1 import release_pb2, release_pb2_grpc, task_pb2, task_pb2_grpc
address, key, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with connect(address, key, **options) as channel:
    stub = task_pb2_grpc.TaskServiceStub(channel)
    tasks = stub.ListTasks(task_pb2.ListTasksRequest(parent="tenants/default"))
    watch = release_pb2_grpc.ReleaseServiceStub(channel).WatchRelease(release_pb2.WatchReleaseRequest())
    print(json.dumps([tasks.tasks[0].name, *(answer.release.name for answer in watch)]))
"""

ASYNCIO = """
import asyncio, json, sys
from isthmus.client import connect_async
from isthmus.deployer.v1 import release_pb2, release_pb2_grpc, task_pb2, task_pb2_grpc
async def main(address, key, options):
    async with connect_async(address, key, **options) as channel:
        stub = task_pb2_grpc.TaskServiceStub(channel)
        tasks = await stub.ListTasks(task_pb2.ListTasksRequest(parent="tenants/default"))
        watch = release_pb2_grpc.ReleaseServiceStub(channel).WatchRelease(release_pb2.WatchReleaseRequest())
        print(json.dumps([tasks.tasks[0].name, *[answer.release.name async for answer in watch]]))
asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""

EXPECTED = ["tenants/default/tasks/bounded", f"Bearer {KEY}", "unbounded"]


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
async def test_calls_carry_the_key_and_a_deadline(client: Client, server: Server, program: str) -> None:
    done = await client.run(program, server.plain, KEY, '{"plaintext": true}')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
async def test_calls_over_tls_with_the_authority_given(client: Client, server: Server, program: str) -> None:
    done = await client.run(program, server.secured, KEY, json.dumps({"ca_file": str(server.ca_file)}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED


async def test_a_server_of_another_authority_is_not_spoken_to(
    client: Client, server: Server, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").certificate_file
    done = await client.run(BLOCKING, server.secured, KEY, json.dumps({"ca_file": str(other)}))
    assert done.returncode != 0
    assert "StatusCode.UNAVAILABLE" in done.stderr


async def test_a_wrong_key_shows_the_servers_answer(client: Client, server: Server) -> None:
    done = await client.run(BLOCKING, server.plain, "isk_other_key", '{"plaintext": true}')
    assert done.returncode != 0
    assert "UNAUTHENTICATED" in done.stderr


async def test_the_wheel_brings_grpcio_and_protobuf_and_nothing_of_ours(client: Client) -> None:
    code = """
import importlib.metadata as m, importlib.util as u, json
names = {d.metadata["Name"].lower().replace("_", "-") for d in m.distributions()} - {"typing-extensions"}
import isthmus
ours = [name for name in ("libs", "services", "deploy") if u.find_spec(name)]
print(json.dumps([sorted(names), ours, isthmus.__file__]))
"""
    done = await client.run(code)
    assert json.loads(done.stdout) == [["grpcio", "isthmus-client", "protobuf"], [], None]


async def test_every_contract_is_in_the_wheel(client: Client) -> None:
    # The Open Inference Protocol isn't: its clients bring their own stubs, and a process can't hold it twice.
    modules = [
        ".".join(path.relative_to(ROOT / "protos").with_suffix("").parts) + suffix
        for path in sorted((ROOT / "protos" / "isthmus").rglob("*.proto"))
        for suffix in ("_pb2", "_pb2_grpc")
    ]
    assert modules
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('all')"
    done = await client.run(code, *modules)
    assert done.stdout == "all\n", done.stderr


async def test_a_program_that_uses_the_wheel_is_type_checked(client: Client, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from isthmus.client import connect\n"
        "from isthmus.deployer.v1 import task_pb2\n"
        "reveal_type(task_pb2.Task().name)\n"
        "connect(7400, 'isk_a_b')\n"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable,
            "-m",
            "mypy",
            "--python-executable",
            str(client.python),
            "--config-file=",
            str(program),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert 'Revealed type is "str"' in done.stdout.replace("builtins.str", "str"), done.stdout
    assert 'Argument 1 to "connect" has incompatible type "int"; expected "str"' in done.stdout
