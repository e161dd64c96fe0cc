"""`isthmus agent` against an agent of which only the socket is there."""

import json
import socket as connected
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from isthmus.device_agent.v1 import device_agent_pb2_grpc
from libs.cli.main import main
from libs.common.errors import Exhausted, Invalid
from libs.common.status import DETAILS_TRAILER, code_of, details_of


class FakeAgent(device_agent_pb2_grpc.AgentServiceServicer):
    """Takes events; every one triggers a run, which is made when the status has been asked for twice more.

    Args:
        limit: how many runs may wait before some are dropped; 0 says nothing of room, as older agents.
    """

    def __init__(self, limit: int = 8) -> None:
        self.limit = limit
        self.events: list[pb.Event] = []
        self.batches: list[int] = []
        self.waiting = self.dropped = self.withdrawn = self.made = 0
        self.stuck = False
        self.refusals: list[Exception] = []
        self.tasks: list[pb.TaskStatus] = []
        self.counters = pb.Counters()
        self.on_status: Callable[[], None] = lambda: None
        self._asked = 0

    def SendEvents(  # noqa: N802
        self, request: pb.SendEventsRequest, context: grpc.ServicerContext
    ) -> pb.SendEventsResponse:
        if self.refusals:
            error = self.refusals.pop(0)
            assert isinstance(error, Exhausted | Invalid)
            context.set_trailing_metadata(((DETAILS_TRAILER, details_of(error, "test")),))
            context.abort(code_of(error), error.message)
        self.events += request.events
        self.batches.append(len(request.events))
        self.waiting += len(request.events)
        if self.limit and self.waiting > self.limit:
            self.dropped += self.waiting - self.limit
            self.waiting = self.limit
        return pb.SendEventsResponse(accepted_count=len(request.events))

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:  # noqa: N802
        self.on_status()
        self._asked += 1
        if self._asked % 2 == 0 and not self.stuck:
            self.made += self.waiting
            self.waiting = 0
        found = pb.GetStatusResponse(pending_run_count=self.waiting, tasks=self.tasks, counters=self.counters)
        found.counters.success_count = self.made
        found.counters.dropped_run_count = self.dropped
        found.counters.withdrawn_run_count = self.withdrawn
        if self.limit:
            found.event_room = max(0, self.limit // 2 - self.waiting)
        return found

    def WatchResults(  # noqa: N802
        self, request: pb.WatchResultsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchResultsResponse]:
        for number in range(1, self.made + 1):
            yield pb.WatchResultsResponse(sequence=number, task="t", version="1", result_json='{"n": 1}')


@pytest.fixture
def fake() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def socket() -> Iterator[Path]:
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="isc-", dir="/tmp") as folder:
        yield Path(folder) / "a.sock"


@pytest.fixture
def listen(fake: FakeAgent, socket: Path) -> Iterator[Callable[[], None]]:
    server = grpc.server(ThreadPoolExecutor(4))
    device_agent_pb2_grpc.add_AgentServiceServicer_to_server(fake, server)

    def start() -> None:
        server.add_insecure_port(f"unix:{socket}")
        server.start()

    yield start
    server.stop(None).wait()


@pytest.fixture
def agent(listen: Callable[[], None], fake: FakeAgent) -> FakeAgent:
    listen()
    return fake


def events(path: Path, count: int, *more: str) -> Path:
    lines = [json.dumps({"type": "go", "time_s": 1_600_000_000 + i, "user": "u"}) for i in range(count)]
    path.write_text("\n".join([*lines, *more]) + "\n")
    return path


@pytest.mark.parametrize("command", ["status", "send", "results"])
def test_a_socket_that_is_not_there_yet_is_waited_for(
    command: str, listen: Callable[[], None], socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = threading.Timer(0.4, listen)
    later.start()
    more = [str(events(tmp_path / "e", 1))] if command == "send" else []
    assert main(["agent", command, "--socket", str(socket), "--wait", "60s", *more]) == 0
    later.join()
    assert capsys.readouterr().err == ""


def test_nobody_listening_is_told_after_the_wait(socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "status", "--socket", str(socket), "--wait", "500ms"]) == 5
    said = capsys.readouterr().err
    assert f"no agent answers at {socket} within 0.5 s" in said
    assert "isthmus agent run" in said


def test_a_socket_that_an_agent_left_behind_is_told_at_once(
    listen: Callable[[], None], socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected.socket(connected.AF_UNIX) as ended:
        ended.bind(str(socket))
    assert main(["agent", "status", "--socket", str(socket), "--wait", "500ms"]) == 5
    said = capsys.readouterr().err
    assert said.startswith(
        f"nobody listens at {socket}: the agent that made it has ended, and its log says why"
    )
    assert "is it running?" in said


def test_what_can_be_no_socket_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["agent", "status", "--socket", str(tmp_path / "file"), "--wait", "1h"]) == 2
    assert "is no socket" in capsys.readouterr().err
    assert main(["agent", "status", "--socket", str(tmp_path / ("x" * 120)), "--wait", "1h"]) == 2
    assert "107 bytes" in capsys.readouterr().err


def test_send_goes_no_faster_than_runs_are_made(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", "agent", "send", "--socket", str(socket), str(events(tmp_path / "e", 30))]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "accepted_count": 30,
        "duplicate_count": 0,
        "dropped_run_count": 0,
        "withdrawn_run_count": 0,
        "pending_run_count": 0,
    }
    assert max(agent.batches) <= 4
    assert agent.made == 30, "it waits for the runs of what it sent"
    assert [event.event_time.seconds for event in agent.events] == [1_600_000_000 + i for i in range(30)]


def test_an_agent_that_says_nothing_of_room_gets_whole_batches(
    agent: FakeAgent, socket: Path, tmp_path: Path
) -> None:
    agent.limit = 0
    assert main(["agent", "send", "--socket", str(socket), str(events(tmp_path / "e", 1200))]) == 0
    assert agent.batches == [500, 500, 200]


def test_runs_dropped_meanwhile_are_told(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    def drop() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            agent.dropped += 3  # Another app was faster.

    agent.on_status = drop
    assert main(["agent", "send", "--socket", str(socket), str(events(tmp_path / "e", 3))]) == 0
    seen = capsys.readouterr()
    assert "warning: 3 runs were dropped meanwhile: more waited than the task's pending_count" in seen.err
    assert "with their version" not in seen.err
    assert "3 events taken" in seen.out


def test_runs_dropped_with_their_version_are_told_apart(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    def roll_back() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            agent.dropped += 88
            agent.withdrawn += 88

    agent.on_status = roll_back
    assert main(["agent", "send", "--socket", str(socket), str(events(tmp_path / "e", 3))]) == 0
    said = capsys.readouterr().err
    assert "88 waiting runs were dropped meanwhile with their version" in said
    assert "pending_count" not in said


def test_runs_that_still_wait_at_the_end_are_told(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.stuck = True
    flags = ["--socket", str(socket), "--wait", "1s"]
    assert main(["agent", "send", *flags, str(events(tmp_path / "e", 3))]) == 0
    assert "3 runs still wait" in capsys.readouterr().err


def test_an_agent_that_makes_no_runs_is_not_waited_for_for_ever(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.stuck = True
    flags = ["--socket", str(socket), str(events(tmp_path / "e", 30))]
    assert main(["--timeout", "1", "agent", "send", *flags]) == 5
    said = capsys.readouterr().err
    assert "hasn't made a run for 1 s" in said
    assert "4 events were taken, up to line 4" in said


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"type": "go"', "line 7, column 14: "),
        ('{"type": "go"}', 'line 7, column 1: $: key "time_s" is missing'),
        ("x" * 300_000, "line 7: longer than"),
    ],
)
def test_a_bad_line_is_named_once_and_what_was_before_it_is_taken(
    line: str,
    what: str,
    agent: FakeAgent,
    socket: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = events(tmp_path / "e", 6, line, line)
    assert main(["agent", "send", "--socket", str(socket), str(path)]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert said.count("line 1") == 0
    assert "before that 6 events were taken, up to line 6" in said
    assert len(agent.events) == 6


def test_bytes_that_are_no_text_are_named(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e").write_bytes(b'\xef\xbb\xbf{"type": "go", "time_s": 1}\n\n\xff\xfe\n')
    flags = ["--json", "agent", "send", "--socket", str(socket), str(tmp_path / "e")]
    assert main(flags) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["message"].startswith("line 3: event is not UTF-8 at byte 0")
    assert error["metadata"] == {"line": "3", "accepted_count": "1", "last_line": "1"}


def test_the_agents_own_refusal_names_the_line(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "e"
    path.write_text('\n{"type": "go", "time_s": 1}\n\n{"type": "go now", "time_s": 1}\n')
    agent.refusals = [Invalid("events[1]: type: 'go now' is not of [A-Za-z]", reason="BAD_TYPE")]
    assert main(["agent", "send", "--socket", str(socket), str(path)]) == 2
    assert "line 4: type: 'go now'" in capsys.readouterr().err


def test_a_full_backlog_is_waited_out_and_a_full_disk_is_not(
    agent: FakeAgent, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.refusals = [Exhausted("too many wait", reason="BACKLOG")]
    assert main(["agent", "send", "--socket", str(socket), str(events(tmp_path / "e", 3))]) == 0
    agent.refusals = [Exhausted("the disk is full", reason="DISK_FULL")]
    assert main(["agent", "send", "--socket", str(socket), str(events(tmp_path / "e", 3))]) == 1
    assert "the disk is full; before that 0 events were taken" in capsys.readouterr().err


def test_status_waits_for_a_version_to_run(
    agent: FakeAgent, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = iter(["STAGED", "STAGED", "ACTIVE"])
    agent.on_status = lambda: agent.tasks.__setitem__(
        slice(None), [pb.TaskStatus(task="t", version="1", state=next(states))]
    )
    flags = ["--socket", str(socket), "--wait", "60s"]
    assert main(["agent", "status", *flags, "--wait-for", "t@1"]) == 0
    assert "t@1" in capsys.readouterr().out
    assert list(states) == []
    name = "tenants/default/tasks/t/versions/1"
    agent.on_status = lambda: None
    assert main(["agent", "status", *flags, "--wait-for", name]) == 0


def test_waiting_for_a_version_ends_with_why_it_does_not_run(
    agent: FakeAgent, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["agent", "status", "--socket", str(socket), "--wait", "500ms", "--wait-for"]
    assert main([*flags, "t@1"]) == 1
    assert "t@1 doesn't run after 0.5 s: it isn't on the device" in capsys.readouterr().err
    assert main([*flags, "t"]) == 2
    assert "TASK@VERSION" in capsys.readouterr().err
    agent.tasks = [
        pb.TaskStatus(
            task="t", version="1", state="FAILED", failure_reason="EXCEPTION", failure_message="line 3: bad"
        )
    ]
    assert main([*flags, "t@1"]) == 1
    assert "t@1 was given up: EXCEPTION: line 3: bad" in capsys.readouterr().err


def test_status_says_why_a_version_was_given_up(
    agent: FakeAgent, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.tasks = [pb.TaskStatus(task="t", version="1", state="FAILED", failure_reason="TIMEOUT")]
    assert main(["agent", "status", "--socket", str(socket)]) == 0
    assert "FAILED, 0 good, 0 failed; TIMEOUT" in capsys.readouterr().out


def test_status_shows_what_was_asked_and_answered(
    agent: FakeAgent, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.counters = pb.Counters(
        request_count=12,
        request_bytes=7224,
        refused_request_count=2,
        answer_count=9,
        answer_bytes=36,
        late_answer_count=1,
    )
    assert main(["agent", "status", "--socket", str(socket)]) == 0
    said = capsys.readouterr().out
    assert "12 (7.1 KiB), 2 more refused" in said
    assert "9 in time (36 B), 3 unanswered, 1 of them too late" in said
