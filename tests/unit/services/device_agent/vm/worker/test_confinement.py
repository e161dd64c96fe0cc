"""The seccomp program, run by a small interpreter of classic BPF: what it allows on both architectures."""

import errno
import struct

import pytest

from services.device_agent.vm.worker.confinement import _ARCHITECTURES, _program

ALLOW = 0x7FFF0000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
PID = 4321


def decide(architecture: str, number: int, argument: int = 0, *, audit: int | None = None) -> int:
    """Return what the program says to a system call."""
    own, _, calls = _ARCHITECTURES[architecture]
    data = struct.pack("IIQQ", number, own if audit is None else audit, 0, argument)
    program = [struct.unpack("HBBI", op) for op in _program(own, calls, PID)]
    at, accumulator = 0, 0
    while True:
        code, true, false, k = program[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("I", data, k)
            case 0x15:
                at += true if accumulator == k else false
            case 0x35:
                at += true if accumulator >= k else false
            case 0x45:
                at += true if accumulator & k else false
            case 0x06:
                return int(k)
            case _:
                raise AssertionError(f"unexpected operation {code:#x}")


both = pytest.mark.parametrize("architecture", sorted(_ARCHITECTURES))


@both
def test_sockets_processes_and_tracing_are_refused(architecture: str) -> None:
    calls = _ARCHITECTURES[architecture][2]
    for name in set(calls) - {"clone", "clone3", "kill", "tgkill", "prlimit64"}:
        assert decide(architecture, calls[name]) == EPERM, name


@both
def test_threads_are_allowed_and_processes_are_not(architecture: str) -> None:
    calls = _ARCHITECTURES[architecture][2]
    assert decide(architecture, calls["clone"], 0x3D0F00) == ALLOW  # as glibc makes a thread
    assert decide(architecture, calls["clone"], 0x1200011) == EPERM  # as it forks
    assert decide(architecture, calls["clone3"]) == ENOSYS


@both
def test_a_process_may_signal_and_limit_itself_only(architecture: str) -> None:
    calls = _ARCHITECTURES[architecture][2]
    for name in ("kill", "tgkill", "prlimit64"):
        assert decide(architecture, calls[name], PID) == ALLOW, name
        assert decide(architecture, calls[name], 1) == EPERM, name
        assert decide(architecture, calls[name], 0xFFFFFFFF) == EPERM, name
    assert decide(architecture, calls["prlimit64"], 0) == ALLOW  # 0 is the process itself there,
    assert decide(architecture, calls["kill"], 0) == EPERM  # and its whole group here


@both
def test_everything_else_is_allowed(architecture: str) -> None:
    calls = _ARCHITECTURES[architecture][2]
    for number in set(range(600)) - set(calls.values()):
        assert decide(architecture, number) == ALLOW


def test_other_numberings_are_refused() -> None:
    assert decide("x86_64", 0, audit=0x40000003) == EPERM  # 32-bit calls
    assert decide("x86_64", 0x40000000 | 41) == EPERM  # x32's socket
