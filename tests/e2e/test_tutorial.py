"""docs/tutorial.md, typed line by line: each line does what the page says."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.layout import ROOT
from tests.e2e.shell import Checkout, blocks, commands

PAGE = ROOT / "docs" / "tutorial.md"
TEXT = PAGE.read_text("utf-8")


@pytest.fixture
def checkout(unused_port_offset: int) -> Iterator[Checkout]:
    folder = Path(tempfile.mkdtemp(prefix="ist-", dir="/tmp"))
    made = Checkout(folder, unused_port_offset)
    try:
        yield made
    finally:
        made.shell.close()
        made.stack.down()
        shutil.rmtree(folder)


@pytest.mark.timeout(900)
def test_each_line_does_what_the_page_says(checkout: Checkout) -> None:
    typed = [command for block in blocks(TEXT) for command in commands(block)]
    assert typed[0].startswith("make up")
    assert typed[-1] == "make down"
    said: dict[str, str] = {}
    for command in typed:
        status, text = checkout.type(command)
        said[command] = text
        refused = "# refused: " in command
        assert (status != 0) is refused, f"`{command}` ended with {status}:\n{text}"

    def after(beginning: str, number: int = 0) -> str:
        """Return what was printed after one of the commands that begin so."""
        found = [text for command, text in said.items() if command.startswith(beginning)]
        assert found, f"nobody types {beginning!r}"
        return found[number]

    assert "click-model  SUCCEEDED" in after("isthmus job submit")
    assert "asks between" in after("isthmus job logs")
    assert "comparisons with ONNX Runtime" in after("isthmus model optimize")
    assert "ratings" in after("isthmus endpoint get")
    assert "passed" in after("isthmus task publish click --events")
    assert "KeyError" in after("isthmus task publish click-broken")
    assert "1.0.0" in after("isthmus task versions")
    assert "1.1.0" not in after("isthmus task versions")
    assert "SUCCEEDED" in after("isthmus release watch click-first")
    results = after("tail -n 3 results.txt")
    assert re.search(r'"source":"(cloud|device|unanswered)"', results), results
    status = after("isthmus agent status --socket phone.sock  ")
    assert re.search(r"requests +[1-9][\d,]* \(", status), status
    assert re.search(r"answers +[\d,]+ in time .* unanswered", status), status
    evening = "isthmus agent send --socket phone.sock --wait 60s data/evening.jsonl"
    assert "pending_count" not in after(evening)
    assert "click" in after("isthmus tunnel export")
    assert "best" in after("isthmus tune trials")
    assert re.search(r"trial \d APPLIED", after("isthmus tune apply"))
    assert "passed" in after("isthmus task publish click-bad")
    assert "ROLLED_BACK" in after("isthmus release watch click-second")
    assert "click@1.0.0" in after("isthmus agent status --socket phone.sock --wait-for click@1.0.0", -1)
    assert not checkout.stack.running()


def test_it_can_be_typed_after_the_readme_in_the_same_checkout() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")

    def made(text: str) -> set[str]:
        """Return what a page's commands make, by name."""
        shell = "\n".join(blocks(text))
        named = r"(--device-id|release create .* --id|job submit .* --id|tune run .* --id|mkdir -p)[ ]+(\S+)"
        return {name for _, name in re.findall(named, shell)}

    assert {"phone", "click-first", "click-second", "batching", "var/tutorial"} <= made(TEXT)
    assert {"dev1", "first", "var/by-hand"} <= made(readme)
    assert made(TEXT) & made(readme) == set()


def test_what_the_tutorial_points_to_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert targets
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []
