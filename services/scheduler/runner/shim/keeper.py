"""Starts a worker's program, watches it, ends it, and writes down how it ended; see the package."""

import ctypes
import errno
import os
import resource
import select
import signal
import time

# pathlib and contextlib would cost each start as much as everything that is imported here.
# ruff: noqa: PTH105, PTH110, PTH123, PTH208, SIM105
# ruff: noqa: TID252
from .processes import children, descendants, freeze, proportional_bytes, resident_bytes, send, start_ticks
from .records import Launch, Log, encode, write_record

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 64 * 1024
# How often memory, the deadline and stop requests are looked at, in seconds: more often near the limit.
_TICK_S = 0.1
_NEAR_TICK_S = 0.02
# How long the end of killed processes is waited for, in seconds: one that hangs in the kernel never ends.
_KILL_S = 60.0
_EXIT_BYTES = 4096
_THREADS_A_PROCESS = 16
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class Keeper:
    """Keeps one worker."""

    def __init__(self, folder: str, ready_fd: int) -> None:
        self._folder = folder
        self._ready_fd = ready_fd
        with open(f"{folder}/launch", "rb") as file:
            self._launch = Launch(file.read())
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._program = 0
        self._status: int | None = None
        self._reason = ""
        self._kill_time = 0.0
        self._peak_bytes = 0
        self._processes = 0
        self._log: Log

    def run(self) -> None:
        """Do it all; returns when the worker's end is written down."""
        boot = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY)
        boot_id = os.read(boot, 64).decode().strip()
        os.close(boot)
        me = os.getpid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        # Whatever the worker starts and leaves behind becomes our child, not init's.
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        write_record(
            f"{self._folder}/shim",
            [("pid", str(me)), ("start_ticks", str(start_ticks(me))), ("boot_id", boot_id)],
        )
        reserved = self._reserve()
        if (reason := self._stop_request()) is not None:
            self._finish(reserved, [("reason", reason), ("started", "0")])
            return
        self._log = Log(f"{self._folder}/log", self._launch.log_bytes)
        output, fault = self._start()
        if fault is not None:
            self._log.close()
            self._finish(reserved, [("reason", "START_FAILED"), ("errno", str(fault)), ("started", "0")])
            return
        write_record(
            f"{self._folder}/running",
            [
                ("pid", str(self._program)),
                ("start_ticks", str(start_ticks(self._program))),
                ("boot_id", boot_id),
                ("start_time", repr(time.time())),
            ],
        )
        self._tell_ready()
        self._watch(output, wake_read)
        end_time = time.time()
        ended = self._kill_tree()
        while data := self._read(output):
            self._log.write(data)
        self._log.close()
        entries = [("reason", self._reason), ("status", str(self._status)), ("started", "1")]
        entries += [("end_time", repr(end_time)), ("peak_memory_bytes", str(self._peak_bytes))]
        if self._processes:
            entries += [("processes", str(self._processes))]
            entries += [("process_count", str(self._launch.process_count))]
        entries += [("dropped_bytes", str(self._log.dropped)), ("left_behind", "0" if ended else "1")]
        self._finish(reserved, entries)

    # ---- start ----
    def _start(self) -> tuple[int, int | None]:
        """Start the program; return its output, and the errno when it couldn't be started."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        fault_read, fault_write = os.pipe2(os.O_CLOEXEC)
        me = os.getpid()
        try:
            self._program = os.fork()
        except OSError as error:
            return read_end, error.errno
        if not self._program:
            self._become_program(me, write_end, fault_write)
        os.close(write_end)
        os.close(fault_write)
        fault = os.read(fault_read, 32)
        os.close(fault_read)
        os.set_blocking(read_end, False)
        if fault:
            os.waitpid(self._program, 0)
        return read_end, int(fault) if fault else None

    def _become_program(self, parent: int, output: int, fault: int) -> None:
        """Become the worker's program; runs in the child and never returns."""
        try:
            try:
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write("800")  # out of memory, the kernel takes a worker before runner and keeper
            except OSError:
                pass
            if self._launch.user_id is not None:
                self._become_user(self._launch.user_id)
            # Without us nobody would watch it: it must not outlive us. A change of user would take this back.
            self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(0)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (*_IGNORED, signal.SIGCHLD, signal.SIGUSR1, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self._launch.folder)
            os.execvpe(self._launch.arguments[0], self._launch.arguments, self._launch.environment)
        except OSError as error:
            os.write(fault, str(error.errno).encode())
        except BaseException:
            os.write(fault, str(errno.EINVAL).encode())
        finally:
            os._exit(127)

    def _become_user(self, user_id: int) -> None:
        """Become a user that nothing else runs as, so that a bound on its processes is the worker's alone."""
        threads = _THREADS_A_PROCESS * self._launch.process_count
        resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)

    def _tell_ready(self) -> None:
        try:
            os.write(self._ready_fd, b"R")
        except OSError:
            pass  # the runner has died meanwhile; the next one reads the record
        os.close(self._ready_fd)

    # ---- watch ----
    def _watch(self, output: int, wake: int) -> None:
        """Copy output and enforce bounds until the program has ended."""
        remaining = self._launch.deadline_s - time.time()
        deadline = time.monotonic() + remaining if self._launch.deadline_s else None
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(output, select.POLLIN)
        tick_time = 0.0
        while True:
            ready = dict(poll.poll(max(0.0, tick_time - time.monotonic()) * 1000))
            woken = wake in ready and _drain(wake)
            if output in ready:
                data = self._read(output)
                if data:
                    self._log.write(data)
                elif data is not None:
                    poll.unregister(output)  # it closed its output, and may go on for long
            if woken:
                self._reap()
                if self._status is not None:
                    return
            now = time.monotonic()
            if woken or now >= tick_time:
                near = self._measure()
                tick_time = now + (_NEAR_TICK_S if near else _TICK_S)
                self._enforce(now, deadline)

    def _read(self, output: int) -> bytes | None:
        """Return what is there to read; b"" at the end, None when nothing is there now."""
        try:
            return os.read(output, _READ_BYTES)
        except BlockingIOError:
            return None

    def _reap(self) -> None:
        """Take the exit status of whatever has ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._program:
                self._status = status
                self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)

    def _measure(self) -> bool:
        """Measure memory and processes, and end the worker if it takes too much; tell whether it is near."""
        tree = descendants(os.getpid())
        taken = sum(map(resident_bytes, tree))
        if taken > self._launch.memory_bytes:
            # Pages that several of its processes share were counted for each.
            taken = sum(map(proportional_bytes, tree))
        self._peak_bytes = max(self._peak_bytes, taken)
        if taken > self._launch.memory_bytes:
            self._kill("OUT_OF_MEMORY")
        elif len(tree) > self._launch.process_count:
            self._processes = len(tree)
            self._kill("TOO_MANY_PROCESSES")
        return taken > self._launch.memory_bytes // 2

    def _enforce(self, now: float, deadline: float | None) -> None:
        """Ask the program to end when somebody wants that or its time is over; kill it when it doesn't."""
        if self._kill_time:
            if now >= self._kill_time:
                self._kill(self._reason)
            return
        reason = self._stop_request()
        if reason is None and deadline is not None and now >= deadline:
            reason = "DEADLINE"
        if reason is not None:
            self._reason = self._reason or reason
            self._kill_time = now + self._launch.grace_s
            try:
                os.killpg(self._program, signal.SIGTERM)
                os.killpg(self._program, signal.SIGCONT)
            except OSError:
                pass

    def _kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._kill_tree()

    def _kill_tree(self) -> bool:
        """Kill every process below this one and take their statuses; False when some don't end."""
        give_up_time = time.monotonic() + _KILL_S
        while time.monotonic() < give_up_time:
            for pid in freeze(os.getpid()):
                send(pid, signal.SIGKILL)
            self._reap()
            if not children(os.getpid()):
                return True
            time.sleep(0.005)
        return False

    def _stop_request(self) -> str | None:
        """Return why somebody wants the end, or None. Without its folder nobody wants the worker."""
        if os.path.exists(f"{self._folder}/stop.none"):
            return None
        try:
            names = os.listdir(self._folder)
        except OSError:
            return "LOST"
        return next((name[5:] for name in names if name.startswith("stop.")), "LOST")

    # ---- end ----
    def _reserve(self) -> int:
        """Take room on the disk for the record of the end, so that a worker that fills it still has one."""
        fd = os.open(f"{self._folder}/exit.tmp", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, bytes(_EXIT_BYTES))
        return fd

    def _finish(self, fd: int, entries: list[tuple[str, str]]) -> None:
        data = encode(entries)
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
        os.replace(f"{self._folder}/exit.tmp", f"{self._folder}/exit")
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)


def _drain(fd: int) -> bool:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
    return True


def _close_others(kept: tuple[int, ...]) -> None:
    """Close what the runner had open and didn't mean for us."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the one that listed them


def main(arguments: list[str]) -> int:
    """Keep the worker in the folder that the first argument names."""
    folder, lock_fd, ready_fd = arguments[0], int(arguments[1]), int(arguments[2])
    _close_others((lock_fd, ready_fd))
    for fd in (lock_fd, ready_fd):
        os.set_inheritable(fd, False)
    # It holds no folder but the worker's own, and is seen to belong to it.
    os.chdir(folder)
    Keeper(folder, ready_fd).run()
    return 0
