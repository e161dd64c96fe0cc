"""A command that follows a release says whom it waits for, and goes on over restarts of real services."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.local.stack import Stack
from tests.integration.system.wire import Handset
from tests.integration.system.world import Cloud, publish, until

pytestmark = pytest.mark.timeout(300)

# As `isthmus`, but a watch counts as quiet sooner.
ISTHMUS = """
from libs.cli.groups import release
from libs.cli.main import main
release._QUIET_S = 5.0
raise SystemExit(main())
"""
SOURCE = "def run(context):\n    return {}\n"


class Watch:
    """A command that runs, and what it has said on its standard error."""

    def __init__(self, cloud: Cloud, *arguments: str) -> None:
        flags = ["--gateway", cloud.gateway, "--tenant", cloud.tenant]
        flags += ["--api-key-file", str(cloud.home / "api.key")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", ISTHMUS, *flags, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def count(self, text: str) -> int:
        """Return how many lines hold a text."""
        assert self.process.poll() is None, self.said
        return sum(text in line for line in self.said)


@contextmanager
def watching(cloud: Cloud, *arguments: str) -> Iterator[Watch]:
    watch = Watch(cloud, *arguments)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait()
        watch.reader.join(timeout=20)
        assert watch.process.stderr is not None
        watch.process.stderr.close()


def test_watching_a_release_says_for_whom_it_waits_and_survives_restarts(
    stack: Stack, cloud: Cloud, handset: Handset
) -> None:
    name = f"tenants/{cloud.tenant}/releases/first"
    made = publish(cloud, "job", "1.0.0", SOURCE)
    with watching(cloud, "release", "create", made.key, "--id", "first", "--watch") as watch:
        until(
            "it says for whom it waits",
            lambda: watch.count("waiting for 1 device: handset, last seen"),
            lambda: watch.said,
        )
        stack.kill("deployer")
        until(
            "it says that the deployer is away", lambda: watch.count("(waiting for it)"), lambda: watch.said
        )
        cloud.release(name)
        cloud.isthmus("release", "pause", "first")
        until("it sees the pause", lambda: watch.count("PAUSED"), lambda: watch.said)
        stack.kill("gateway")
        until(
            "it says that the gateway is away",
            lambda: watch.count("(waiting for it)") > 1,
            lambda: watch.said,
        )
        cloud.release(name)
        cloud.isthmus("release", "rollback", "first", "--reason", "enough")
        assert watch.process.wait(timeout=120) == 1
        watch.reader.join(timeout=60)
    said = "".join(watch.said)
    assert "ROLLED_BACK" in said
    assert "service 'deployer' can't be reached" in said
    assert said.count("waiting for 1 device") == 1, said
    for raw in ("Stream removed", "Socket closed", "Deadline"):
        assert raw not in said
