"""The agent's folder and socket: taken by one agent, refused with the setting to mend."""

import fcntl
import os
import tempfile
from pathlib import Path

from libs.common.errors import Precondition
from libs.common.fsio import disk_errors
from services.device_agent.config import AgentConfig


def take(config: AgentConfig) -> int:
    """Make the state folder and lock it; return the descriptor that holds the lock.

    Raises:
        Precondition: when another agent has it, or it, or the folder of the socket, can't be used.
        Exhausted: when the disk is full.
    """
    state, socket = config.state_dir, config.socket
    with disk_errors(state):
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise Precondition(
                f"--state-dir: {state} is, or lies under, a file; give a folder", reason="NO_STATE_DIR"
            ) from None
        except PermissionError as error:
            raise Precondition(
                f"--state-dir: {state} can't be made ({error.strerror}); give a folder of this user's",
                reason="NO_STATE_DIR",
            ) from None
        if not socket.parent.is_dir():
            raise Precondition(
                f"--socket-path: the folder {socket.parent} isn't there; make it, or give another path",
                reason="NO_SOCKET_DIR",
            )
        return _lock(state)


def _lock(state: Path) -> int:
    descriptor = os.open(state / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Precondition(
            f"--state-dir: another agent uses {state}; stop it, or give each agent a folder of its own",
            reason="STATE_DIR_LOCKED",
        ) from None
    return descriptor


def check_scratch(folder: Path) -> None:
    """Raise Exhausted, reason DISK_FULL, unless task workers can be given folders in `folder`."""
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(dir=folder)).rmdir()


def clear_socket(path: Path) -> None:
    """Remove what a dead agent left; we hold the folder's lock, so nobody of ours listens there."""
    if path.is_socket():
        path.unlink()
    elif path.exists():
        raise Precondition(
            f"--socket-path: {path} is there and is no socket; give another", reason="SOCKET_TAKEN"
        )
