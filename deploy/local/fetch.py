"""Prometheus' binary: from PATH, else out of Debian's package, fetched without root into the cache."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.local.errors import StackError

FETCH_S = 120.0
"""Seconds that one step of fetching may take."""
TOOLS = ("apt-get", "dpkg-deb")


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(f"`{command[0]}` was not done after {FETCH_S:.0f} s") from error
    if done.returncode != 0:
        said = [
            line for line in done.stderr.splitlines() if line.startswith("E:")
        ] or done.stderr.splitlines()
        raise StackError(f"`{command[0]}` failed: {said[0] if said else f'exit status {done.returncode}'}")


def _own_lists(state: Path) -> tuple[str, ...]:
    """Return options that keep apt-get's lists and archives in a folder of ours, so that it needs no root."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    # An empty status file: what is installed on this machine has no say in what is downloaded.
    (state / "status").touch()
    return (
        *("-o", f"Dir::State={state}", "-o", f"Dir::State::lists={state / 'lists'}"),
        *("-o", f"Dir::State::status={state / 'status'}", "-o", f"Dir::Cache={state / 'cache'}"),
        *("-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"),
    )


def _fetch(cache: Path) -> None:
    """Put the unpacked package at ``cache``; apt-get checks its signature and digest."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise StackError(f"there is no `{missing[0]}` here to fetch Debian's package with")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prometheus-", dir=cache.parent) as text:
        scratch = Path(text)
        options = _own_lists(scratch / "apt")
        _run(["apt-get", *options, "-qq", "update"], scratch)
        _run(["apt-get", *options, "-qq", "download", "prometheus"], scratch)
        packages = list(scratch.glob("prometheus_*.deb"))
        if not packages:
            raise StackError("apt-get downloaded no package")
        unpacked = scratch / "unpacked"
        _run(["dpkg-deb", "--extract", str(packages[0]), str(unpacked)], scratch)
        # Where two stacks fetch at once, the first one's copy stays.
        if not cache.exists():
            (unpacked / "usr").rename(cache)


def find_prometheus(cache: Path, say: Callable[[str], None]) -> Path:
    """Return Prometheus' binary, fetching it at first use.

    Args:
        cache: folder of downloads; the binary is kept in ``prometheus/`` in it.
        say: told when something takes a while.

    Raises:
        StackError: it isn't to be had here; the text says why.
    """
    installed = shutil.which("prometheus")
    if installed:
        return Path(installed)
    binary = cache / "prometheus" / "bin" / "prometheus"
    if not os.access(binary, os.X_OK):
        say("fetching Prometheus (Debian's package, once)")
        try:
            _fetch(cache / "prometheus")
        except OSError as error:
            raise StackError(str(error)) from error
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{binary} doesn't run here: {error}") from error
    if done.returncode != 0:
        raise StackError(f"{binary} doesn't run here: exit status {done.returncode}")
    return binary


def find_grafana() -> Path:
    """Return Grafana's server binary.

    Raises:
        StackError: it isn't on PATH.
    """
    for name in ("grafana-server", "grafana"):
        found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/share/grafana/bin")
        if found:
            return Path(found)
    raise StackError("no grafana-server on PATH; its dashboards are in deploy/grafana")
