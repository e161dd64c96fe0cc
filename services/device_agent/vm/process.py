"""One worker process seen from the agent: start, call, kill, reap. Linux 5.3 or newer (pidfd).

Whatever the worker sends is untrusted: frames are bounded before they are read, and a frame that isn't the
answer to the call at hand, or something that its run asks, ends the worker.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import libs.runtime
from libs.common.errors import Unavailable
from libs.common.fsio import remove_tree
from services.device_agent.vm.model import Answerer, Ask, LoadedTask, Reply, VmConfig
from services.device_agent.vm.wire import ProtocolFault, parse_ask, parse_reply, reply_to_ask
from services.device_agent.vm.worker.framing import HEADER, PROTOCOL

_log = logging.getLogger(__name__)

_BOOT = Path(__file__).parent / "worker" / "boot.py"
_STACK = b"Stack (most recent call first):"
_STACK_END = re.compile(rb'(boot\.py", line \d+ in <module>|\n  \.\.\.)\n')
"""Of the outermost frame, or of the hundred frames that are shown."""
_BLOCKED = ("deploy", "libs", "services", "tests")


class WorkerDied(Exception):
    """The process has ended before it answered."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended."""

    code: int
    """Exit status, or minus the signal."""
    cpu_s: float
    peak_rss_bytes: int
    """0 when unknown: it stayed below the agent's own peak."""

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit status {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"


class WorkerProcess:
    """A started worker. All methods belong to the event loop that started it.

    Start it from a thread that outlives it, such as the main one: the parent-death signal follows the thread.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        output: int,
        config: VmConfig,
        folder: Path,
    ) -> None:
        self.pid = process.pid
        self.loaded: OrderedDict[str, LoadedTask] = OrderedDict()
        """The tasks loaded in it, the one unused longest first; kept by the pool."""
        self.confinement: tuple[str, ...] = ()
        self.killed = False
        """Whether we have killed it; it may live a little longer."""
        self._process = process
        self._socket = sock
        self._output = output
        self._tail = bytearray()
        self._drained = asyncio.Event()
        self._config = config
        self._folder = folder
        self._calls = 0
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._on_exit: Callable[[], None] | None = None
        # A process keeps the peak of who started it across exec: less than our own peak tells nothing.
        self._peak_floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(output, self._drain)

    @classmethod
    async def start(cls, config: VmConfig, folder: Path) -> "WorkerProcess":
        """Start a worker in the new folder `folder` and wait until it is ready.

        Raises Unavailable when the process can't be made, dies, or isn't ready within `start_timeout_s`.
        """
        try:
            # On the loop's own thread (see the class), for a few milliseconds.
            worker = cls._spawn(config, folder)
        except OSError as error:
            remove_tree(folder)
            raise Unavailable(f"can't start a task worker ({config.python}): {error}") from error
        try:
            async with asyncio.timeout(config.start_timeout_s):
                hello = await worker._receive()
            if hello.get("hello") != PROTOCOL:
                raise ProtocolFault(f"unexpected greeting {hello!r:.200}")
            worker.confinement = tuple(str(name) for name in hello["confinement"])
        except (TimeoutError, WorkerDied, ProtocolFault) as error:
            ended = await worker.kill()
            text = worker.take_output().strip()
            raise Unavailable(
                f"a task worker did not get ready: {type(error).__name__} {error}; {ended}; {text[-1000:]}"
            ) from error
        except BaseException:
            await worker.kill()
            raise
        return worker

    @classmethod
    def _spawn(cls, config: VmConfig, folder: Path) -> "WorkerProcess":
        folder.mkdir(mode=0o700, parents=True)
        ours, theirs = socket.socketpair()
        output, inner = os.pipe2(os.O_CLOEXEC)
        try:
            ours.setblocking(False)
            os.set_blocking(output, False)
            settings = _settings(config, folder, theirs.fileno())
            process = subprocess.Popen(
                [config.python, "-I", "-S", "-X", "utf8", str(_BOOT), settings],
                stdin=subprocess.DEVNULL,
                stdout=inner,
                stderr=inner,
                pass_fds=(theirs.fileno(),),
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(inner)
        try:
            return cls(process, ours, output, config, folder)
        except BaseException:
            process.kill()
            process.wait()
            ours.close()
            os.close(output)
            raise

    @property
    def alive(self) -> bool:
        """Whether it hasn't been seen to end."""
        return not self._exit.done()

    @property
    def usable(self) -> bool:
        """Whether a call may be made: it lives, and has sent nothing that would pass for the answer."""
        if not self.alive or self.killed:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def on_exit(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` once when it ends; the last one given counts."""
        self._on_exit = callback

    async def call(self, request: bytes, timeout_s: float, answer: Answerer | None = None) -> dict[str, Any]:
        """Send a request, a JSON object, and return the reply; `answer` answers what is asked until then.

        Raises TimeoutError, WorkerDied or ProtocolFault; the caller then kills the worker, which can't be
        used any more. The same holds when the call is cancelled.
        """
        self._calls += 1
        asks = 0
        async with asyncio.timeout(timeout_s):
            await self._send(b'{"id":%d,' % self._calls + request[1:])
            while True:
                reply = await self._receive()
                number = reply.get("id")
                if number != self._calls:
                    # What is left of an earlier call isn't the fault of this one, and does it no harm.
                    if type(number) is not int or not 0 < number < self._calls:
                        raise ProtocolFault(f"answer to call {number!r:.50} instead of {self._calls}")
                elif "ask" not in reply:
                    return reply
                else:
                    asks += 1
                    if answer is None or asks > self._config.max_asks:
                        raise ProtocolFault(f"request {asks} to a model where none is expected")
                    answered = await self._answered(parse_ask(reply), answer)
                    await self._send(reply_to_ask(self._calls, answered))

    async def _answered(self, ask: Ask, answer: Answerer) -> Reply:
        """Return the answer to what the run asks; raise WorkerDied as soon as nobody waits for it."""
        answering = asyncio.ensure_future(answer(ask))
        futures: set[asyncio.Future[Any]] = {answering, self._exit}
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise WorkerDied("it ended while it waited for an answer")
            return answering.result()
        except Exception as error:
            if isinstance(error, WorkerDied):
                raise
            # A fault of ours, which must end neither the run nor this worker's loop.
            _log.exception("what a run asks can't be handled")
            return Reply(why="it can't be handled; see the agent's log")
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _send(self, body: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._socket, HEADER.pack(len(body)) + body)
        except ConnectionError as error:
            raise WorkerDied(str(error)) from error

    async def _receive(self) -> dict[str, Any]:
        (size,) = HEADER.unpack(await self._read(HEADER.size))
        if size > self._config.max_reply_bytes:
            raise ProtocolFault(f"frame of {size} bytes exceeds {self._config.max_reply_bytes}")
        return parse_reply(await self._read(size))

    async def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = await self._loop.sock_recv(self._socket, size - len(parts))
            except ConnectionError as error:
                raise WorkerDied(str(error)) from error
            if not part:
                raise WorkerDied("it closed its socket")
            parts += part
        return bytes(parts)

    async def where(self, key: str) -> str:
        """Return the place at which a script runs, `file, line N, in function`; "" when it can't be had.

        The worker's faulthandler answers a signal from C, whatever the interpreter does.
        """
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            os.kill(self.pid, signal.SIGUSR1)
            async with asyncio.timeout(self._config.place_timeout_s):
                while not _STACK_END.search(self._tail.partition(_STACK)[2]):
                    self._drained.clear()
                    await self._drained.wait()
        before, _, stack = bytes(self._tail).partition(_STACK)
        self._tail[:] = before
        places = re.findall(r'File "(.*)", line (\d+) in (.*)', stack.decode("utf-8", "replace"))
        return next((f"{f}, line {n}, in {name}" for f, n, name in places if f.startswith(f"{key}/")), "")

    def take_output(self) -> str:
        """Return the end of what was written to stdout and stderr since the last call."""
        self._drain()
        text = self._tail.decode("utf-8", "replace")
        self._tail.clear()
        return text

    def _drain(self) -> None:
        """Read what the pipe holds now; once per turn of the loop, so that a flood can't hold the loop."""
        try:
            data = os.read(self._output, 1 << 16) if self._output >= 0 else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_output()
            return
        self._tail += data
        self._drained.set()
        del self._tail[: -self._config.max_output_bytes]

    def _close_output(self) -> None:
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1

    def kill_now(self) -> None:
        """Send SIGKILL to the process and its group; doesn't wait."""
        self.killed = True
        if self.alive:
            # Not reaped yet, so neither number can have been given to another process.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def kill(self) -> Exit:
        """Kill it, reap it, remove its folder; returns how it ended. May be called again."""
        self.kill_now()
        ended = await asyncio.shield(self._exit)
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._drain()
            self._close_output()
            await asyncio.to_thread(remove_tree, self._folder)
        return ended

    def _reap(self) -> None:
        # Stragglers of its group first: reaping frees the group's number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return  # woken for nothing; the descriptor stays readable until it is reaped
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        peak = usage.ru_maxrss * 1024 if usage.ru_maxrss > self._peak_floor else 0
        self._exit.set_result(Exit(code, usage.ru_utime + usage.ru_stime, peak))
        if self._on_exit is not None:
            self._on_exit()


def _environment(folder: Path) -> dict[str, str]:
    """Return a clean environment: nothing of the agent's reaches a script, its secrets least of all."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        # A thread per core would take memory and cores that aren't the task's.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    # Some Pythons find their own shared library only by it.
    return environment | {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def _settings(config: VmConfig, folder: Path, fd: int) -> str:
    packages = sysconfig.get_path("purelib")
    spec = find_spec("isthmus.task")
    if spec is None or spec.origin is None:
        raise Unavailable("the package isthmus.task, which scripts import, isn't installed beside the agent")
    public = Path(spec.origin).parents[2]
    installation = [
        sys.base_prefix,
        packages,
        str(public),
        str(_BOOT.parent),
    ]
    system = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    runtime = Path(libs.runtime.__file__).parents[1]
    plans = find_spec("isthmus.engine.v1.plan_pb2")
    if plans is None or plans.origin is None:
        raise Unavailable(
            "the generated code of isthmus.engine, which reads plans, isn't there: run `make protos`"
        )
    protos = Path(plans.origin).parents[3]
    installation += [str(runtime), str(protos / "isthmus")]
    machine = ["/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/dev/urandom", "/dev/zero"]
    return json.dumps(
        {
            "fd": fd,
            "parent": os.getpid(),
            "import_paths": [str(public), packages],
            "blocked": _BLOCKED,
            "libs": str(runtime),
            "protos": str(protos),
            "confine": config.confine,
            "readable": [*dict.fromkeys(map(str, [*installation, *system, *machine, *config.readable]))],
            "writable": [str(folder), "/dev/null"],
            "max_request_bytes": config.max_request_bytes,
            "max_reply_bytes": config.max_reply_bytes,
            "max_file_bytes": config.max_file_bytes,
            "max_growth_bytes": config.max_growth_bytes,
        }
    )
