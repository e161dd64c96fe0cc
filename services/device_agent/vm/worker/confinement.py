"""Takes away what a worker doesn't need, before it sees a script: Linux, each part where the kernel has it.

All of it is irrevocable for the process. `apply` returns the names of what holds.
"""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Iterable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_THREAD = 0x10000

# Which system calls a worker loses, by architecture: (AUDIT_ARCH, seccomp's number, {name: number}).
_ARCHITECTURES: dict[str, tuple[int, int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        317,
        {
            "socket": 41, "fork": 57, "vfork": 58, "execve": 59, "ptrace": 101, "rt_sigqueueinfo": 129,
            "tkill": 200, "rt_tgsigqueueinfo": 297, "process_vm_readv": 310, "process_vm_writev": 311,
            "execveat": 322, "pidfd_send_signal": 424, "io_uring_setup": 425,
            "clone": 56, "clone3": 435, "kill": 62, "tgkill": 234, "prlimit64": 302,
        },
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {
            "socket": 198, "execve": 221, "ptrace": 117, "rt_sigqueueinfo": 138, "tkill": 130,
            "rt_tgsigqueueinfo": 240, "process_vm_readv": 270, "process_vm_writev": 271, "execveat": 281,
            "pidfd_send_signal": 424, "io_uring_setup": 425,
            "clone": 220, "clone3": 435, "kill": 129, "tgkill": 131, "prlimit64": 261,
        },
    ),
}  # fmt: skip
_SELF_ONLY = ("kill", "tgkill", "prlimit64")
_SPECIAL = ("clone", "clone3", *_SELF_ONLY)


def apply(settings: dict[str, Any]) -> list[str]:
    """Confine this process as `settings` say; returns the names of what holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = []
    if _die_with_parent(libc, int(settings["parent"])):
        held.append("pdeathsig")
    _set_rlimits(settings)
    held.append("rlimits")
    if settings["confine"] and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        if _landlock(libc, settings["readable"], settings["writable"]):
            held.append("landlock")
        if _seccomp(libc):
            held.append("seccomp")
    return held


def _die_with_parent(libc: ctypes.CDLL, parent: int) -> bool:
    held: bool = libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0
    if os.getppid() != parent:  # it died before we asked
        os._exit(0)
    return held


def _set_rlimits(settings: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, 256)
    _lower(resource.RLIMIT_FSIZE, int(settings["max_file_bytes"]))
    # Not RLIMIT_NPROC: it counts all processes of the user, the agent's among them, and root is exempt.
    # seccomp refuses new processes instead.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")  # out of memory, the kernel takes a worker before the agent


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (limit, limit))


def _landlock(libc: ctypes.CDLL, readable: Sequence[str], writable: Sequence[str]) -> bool:
    """Leave only `readable` for reading and `writable` for both; False without Landlock (Linux 5.13)."""
    version = libc.syscall(444, None, 0, 1)
    if version < 1:
        return False
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    everything = (1 << bits) - 1
    read_file, read_dir = 1 << 2, 1 << 3
    files_only = everything & (1 << 0 | 1 << 1 | read_file | 1 << 14 | 1 << 15)
    attribute = struct.pack("Q", everything)
    ruleset = libc.syscall(444, attribute, len(attribute), 0)
    if ruleset < 0:
        return False
    try:
        rules = [(path, read_file | read_dir) for path in readable] + [
            (path, everything) for path in writable
        ]
        for path, rights in rules:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not on this machine
            allowed = rights if os.path.isdir(path) else rights & files_only  # noqa: PTH112
            failed = libc.syscall(445, ruleset, 1, struct.pack("=Qi", allowed, fd), 0)
            os.close(fd)
            if failed:
                return False
        return bool(libc.syscall(446, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _seccomp(libc: ctypes.CDLL) -> bool:
    """Refuse sockets, processes, exec, and signalling or tracing others; False without seccomp filters."""
    architecture = _ARCHITECTURES.get(os.uname().machine)
    if architecture is None:
        return False
    audit, number, calls = architecture
    program = b"".join(_program(audit, calls, os.getpid()))
    buffer = ctypes.create_string_buffer(program)
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    set_mode_filter, spec_allow = 1, 1 << 2
    return any(libc.syscall(number, set_mode_filter, flags, fprog) == 0 for flags in (spec_allow, 0))


def _program(audit: int, calls: dict[str, int], pid: int) -> Iterable[bytes]:
    """Yield the classic BPF instructions; `kill` and the like stay allowed for the process itself."""
    load, equal, above, any_bit, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    allow = _op(ret, 0x7FFF0000)
    refuse = _op(ret, 0x00050000 | errno.EPERM)
    yield _op(load, 4)  # the architecture
    yield _op(equal, audit, 1, 0)
    yield refuse
    yield _op(load, 0)  # the call's number
    yield _op(above, 0x40000000, 0, 1)  # the x32 numbers would slip through
    yield refuse
    for name, number in calls.items():
        if name not in _SPECIAL:
            yield _op(equal, number, 0, 1)
            yield refuse
    yield _op(equal, calls["clone3"], 0, 1)
    yield _op(ret, 0x00050000 | errno.ENOSYS)  # its flags can't be seen; the C library falls back to clone
    yield _op(equal, calls["clone"], 0, 4)
    yield _op(load, 16)  # the first argument
    yield _op(any_bit, _CLONE_THREAD, 0, 1)
    yield allow
    yield refuse
    for name in _SELF_ONLY:
        yield _op(equal, calls[name], 0, 5)
        yield _op(load, 16)
        yield _op(equal, pid, 1, 0)
        yield _op(equal, 0, 0, 1) if name == "prlimit64" else _op(equal, pid, 0, 1)
        yield allow
        yield refuse
    yield allow


def _op(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("HBBI", code, true, false, k)
