import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.local.ports import MARKER, Holder, free_offset, holders, is_free, members

LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(), "a process of another user"),
        (Holder(7, "nginx -g"), "process 7 (nginx -g)"),
        (Holder(7, "python", "/srv/var"), "process 7 (python), of the stack in /srv/var"),
    ],
)
def test_a_holder_is_named_for_people(holder: Holder, text: str) -> None:
    assert str(holder) == text


def test_who_listens_is_found_and_who_does_not_is_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, "a" * 200],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={MARKER: "/some/stack"},
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = holders([port])
        assert members("/some/stack") == [psutil.Process(process.pid)]
        assert not is_free(port)
    holder = found[port]
    assert (holder.pid, holder.stack) == (process.pid, "/some/stack")
    assert holder.command.startswith(f"{sys.executable} -c")
    assert len(holder.command) == 120
    assert holders([port]) == {}
    assert members("/some/stack") == []


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (("-I", "-S", "-E", "{folder}/boot.py", "{home}/runner/workers/u-1-0"), {}),
        (("{folder}/boot.py",), {"ISTHMUS_WORKER": "{home}/runner/workers/u-1-0"}),
    ],
    ids=["its keeper", "its program"],
)
def test_what_a_job_runs_belongs_to_the_stack_of_its_runner(
    tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str]
) -> None:
    home = tmp_path / "home"
    (tmp_path / "boot.py").write_text("import sys; print(flush=True); sys.stdin.read()")
    places = {"folder": str(tmp_path), "home": str(home)}
    with subprocess.Popen(
        [sys.executable, *(word.format(**places) for word in arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: value.format(**places) for name, value in environ.items()},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert members(str(home)) == [psutil.Process(process.pid)]
        assert members(str(tmp_path / "hom")) == members(str(home / "runner")) == []


def test_what_another_users_process_hides_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        # What the kernel shows of connections of others: no process.
        hidden = [connection._replace(pid=None) for connection in psutil.net_connections("tcp")]
        monkeypatch.setattr(psutil, "net_connections", lambda kind: hidden)
        assert holders([port]) == {port: Holder()}


def test_an_offset_is_free_for_all_ports() -> None:
    offset = free_offset([7400, 8410])
    assert is_free(7400 + offset)
    assert is_free(8410 + offset)
