"""Paths of a task's files: the same inside the manifest, on disk at the author's, and on the device."""

from collections.abc import Iterable

from libs.task.jsontext import fault, show

MAX_BYTES = 255


def check_path(path: object, where: str) -> str:
    """Return `path` if it is relative, of plain parts between `/`, and at most 255 bytes of UTF-8.

    Raises Invalid naming `where` for anything that could leave the task's folder or not be written there.
    """
    if not isinstance(path, str) or not path:
        raise fault(where, f"must be a relative path, not {show(path)}")
    if not path.isprintable() or "\\" in path or len(path.encode()) > MAX_BYTES:
        raise fault(
            where, f"must be at most {MAX_BYTES} printable bytes with '/' between parts, not {show(path)}"
        )
    if path.startswith("/"):
        raise fault(where, f"must be relative, not {show(path)}")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise fault(where, f"must not contain '.', '..' or empty parts: {show(path)}")
    return path


def check_tree(paths: Iterable[tuple[str, str]]) -> None:
    """Raise Invalid when one of the (path, where) pairs is both a file and another one's folder."""
    files = dict(paths)
    for path, where in files.items():
        parts = path.split("/")
        for length in range(1, len(parts)):
            folder = "/".join(parts[:length])
            if folder in files:
                raise fault(where, f"{show(path)} needs a folder where {show(folder)} is a file")
