"""The files of a worker's folder, as its keeper writes and reads them."""

import os

# pathlib and contextlib would cost each start as much as everything that is imported here.
# ruff: noqa: PTH105, PTH123


def encode(entries: list[tuple[str, str]]) -> bytes:
    """Return entries as a file holds them."""
    return b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in entries)


def decode(data: bytes) -> list[tuple[str, str]]:
    """Return the entries of a file, in order."""
    return [
        (key, value)
        for key, _, value in (os.fsdecode(entry).partition("=") for entry in data.split(b"\0")[:-1])
    ]


def write_record(path: str, entries: list[tuple[str, str]]) -> None:
    """Put a file at `path`, whole or not at all; not synced."""
    with open(f"{path}.tmp", "wb") as file:
        file.write(encode(entries))
    os.replace(f"{path}.tmp", path)


class Launch:
    """What to start and within which bounds; `FOLDER/launch`."""

    def __init__(self, data: bytes) -> None:
        """Read the file's content; raise KeyError or ValueError when it isn't one."""
        entries = decode(data)
        single = dict(entries)
        self.arguments = [value for key, value in entries if key == "arg"]
        self.environment = dict(value.split("=", 1) for key, value in entries if key == "env")
        self.folder = single["cwd"]
        self.memory_bytes = int(single["memory_bytes"])
        self.deadline_s = float(single["deadline_time"])
        self.grace_s = float(single["grace_s"])
        self.log_bytes = int(single["log_bytes"])
        self.process_count = int(single["process_count"])
        self.user_id = int(single["uid"]) if single["uid"] else None


class Log:
    """What a worker writes: up to a bound to the file, the rest is counted."""

    def __init__(self, path: str, limit: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._room = limit - os.fstat(self._fd).st_size
        self.dropped = 0

    def write(self, data: bytes) -> None:
        """Append; what doesn't fit below the bound or on the disk is dropped."""
        kept = self._append(data[: max(0, self._room)])
        self._room -= kept
        self.dropped += len(data) - kept

    def close(self) -> None:
        """Note what was dropped, and close."""
        if self.dropped:
            self._append(b"\n[isthmus: %d more bytes of output were dropped]\n" % self.dropped)
        os.close(self._fd)

    def _append(self, data: bytes) -> int:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            # A full disk mustn't end the worker.
            pass
        return written
