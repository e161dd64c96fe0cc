"""The examples of docs/, run as they stand there.

The language of a fenced block says what is done with it: `sh` is typed into a shell beside a real stack, page
by page; `python` is executed; `json WHAT` is parsed as what it is. What can't be run (a drawing, a layout of
files, an abridged listing) is fenced `text`; nothing else is allowed. docs/task-format.md and
docs/tutorial.md have tests of their own.
"""

import ast
import asyncio
import contextlib
import inspect
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.layout import ROOT
from deploy.local.ports import free_offset
from deploy.local.stack import Stack
from libs.task.event import event_from_json
from libs.task.expression import read_expression
from libs.task.pipeline import parse_pipeline
from libs.task.trigger import parse_trigger
from services.scheduler.runner.inventory import simulated

pytestmark = pytest.mark.timeout(300)

DOCS = ROOT / "docs"
PAGES = sorted({*DOCS.glob("*.md"), *DOCS.glob("libs/*.md")} - {DOCS / "task-format.md"})
PARSERS: Mapping[str, Callable[[str], object]] = {
    "event": event_from_json,
    "expression": read_expression,
    "gpus": simulated,
    "pipeline": parse_pipeline,
    "trigger": parse_trigger,
}
WITHOUT = ("grafana", "prometheus")
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    text = page.read_text("utf-8")
    found = []
    for match in re.finditer(r"^```(.*)\n((?:(?!```).*\n)*)```$", text, re.MULTILINE):
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2]))
    assert text.count("\n```") == 2 * len(found), f"{page} has a fence that doesn't close"
    return found


ALL = [block for page in PAGES for block in blocks(page)]
# The tutorial begins with `make up`: tests/e2e types it, line by line.
SHELL_PAGES = [
    page
    for page in PAGES
    if page.name != "tutorial.md" and any(block.language == "sh" for block in blocks(page))
]
PYTHON = [block for block in ALL if block.language == "python"]
JSON = [block for block in ALL if block.language.startswith("json")]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a reader sits: a folder with the stack's `var`, as a checkout has it."""

    folder: Path
    stack: Stack
    offset: int

    def here(self, text: str) -> str:
        """Return an example for this stack's ports."""
        return re.sub(r"(?<=127\.0\.0\.1:)7\d{3}\b", lambda port: str(int(port[0]) + self.offset), text)

    @property
    def environ(self) -> dict[str, str]:
        """The shell's environment: the command's own settings are found in var/, as after `make up`."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
        return mine | {
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "ISTHMUS_HOME": str(self.folder / "var"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    def type(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a script in a shell; what it leaves running is ended."""
        with subprocess.Popen(
            ["bash", "--norc", "-e", "-c", self.here(text)],
            cwd=folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=PATIENCE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            return subprocess.CompletedProcess(text, process.returncode, said)


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    folder = Path(tempfile.mkdtemp(prefix="isd-", dir="/tmp"))
    try:
        offset = free_offset(Stack(folder).ports())
        with Stack(folder / "var", offset, without=WITHOUT) as stack:
            stack.up()
            made = Desk(folder, stack, offset)
            ready = made.type("isthmus trust init", folder)
            assert ready.returncode == 0, ready.stdout
            yield made
    finally:
        shutil.rmtree(folder)


def test_every_block_says_what_it_is() -> None:
    assert len(SHELL_PAGES) >= 5
    known = {"sh", "python", "text", *(f"json {what}" for what in PARSERS)}
    assert [f"{block}: {block.language!r}" for block in ALL if block.language not in known] == []
    # A block by indentation would escape all this.
    indented = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in re.sub(
            r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
        ).splitlines()
        if re.match(r"    (isthmus|python|make|curl|grpcurl) ", line)
    ]
    assert indented == []


@pytest.mark.parametrize("page", SHELL_PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(desk: Desk, page: Path) -> None:
    folder = desk.folder / page.stem
    folder.mkdir()
    (folder / "var").symlink_to(desk.folder / "var")
    (folder / "examples").symlink_to(ROOT / "examples")
    script = "".join(f"echo '--- {block}'\n{block.text}" for block in blocks(page) if block.language == "sh")
    ended = desk.type(script, folder)
    assert ended.returncode == 0, f"ended with {ended.returncode} after:\n{ended.stdout}"
    assert "Traceback" not in ended.stdout


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For what needs a folder and ports of its own.
    home = Path(tempfile.mkdtemp(prefix="isp-", dir="/tmp"))
    monkeypatch.chdir(home)
    text = block.text
    if "port_offset=100" in text:
        text = text.replace("port_offset=100", f"port_offset={free_offset(Stack(home).ports())}")
    try:
        code = compile(text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        namespace: dict[str, object] = {"__name__": "example"}
        made = eval(code, namespace)
        if inspect.isawaitable(made):
            asyncio.run(asyncio.wait_for(made, PATIENCE_S))
    finally:
        shutil.rmtree(home)


@pytest.mark.parametrize("block", JSON, ids=str)
def test_json_is_what_it_is_said_to_be(block: Block) -> None:
    PARSERS[block.language.partition(" ")[2]](block.text)
