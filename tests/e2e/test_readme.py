"""The README's commands, taken out of it and run: what it says works, and goes on working."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.layout import ROOT
from tests.e2e.shell import Checkout, blocks, commands

README = (ROOT / "README.md").read_text("utf-8")


def block(heading: str) -> list[str]:
    """Return the commands of the first block of shell under a heading."""
    found = blocks(README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])
    assert found, f"the README has no shell commands under {heading!r}"
    return commands(found[0])


@pytest.fixture
def checkout(unused_port_offset: int) -> Iterator[Checkout]:
    folder = Path(tempfile.mkdtemp(prefix="isr-", dir="/tmp"))
    made = Checkout(folder, unused_port_offset)
    try:
        yield made
    finally:
        made.shell.close()
        made.stack.down()
        shutil.rmtree(folder)


@pytest.mark.timeout(600)
def test_the_commands_work_as_they_stand_there(checkout: Checkout) -> None:
    by_hand, probing = block("By hand"), block("Probing with grpcurl")
    assert by_hand[0].startswith("make up")
    assert by_hand[-1] == "make down"
    outcomes = checkout.paste(by_hand)
    said = dict(zip(by_hand, (text for _, text in outcomes), strict=False))
    for command, (status, text) in zip(by_hand, outcomes, strict=False):
        assert status == 0, f"`{command}` ended with {status}:\n{text}"
    everything = "".join(said.values())
    # What a reader expects to see.
    for text in ("gateway", "SERVING", "clicks", "count", "line  SUCCEEDED", "comparisons with ONNX Runtime"):
        assert text in everything, everything
    (results,) = (text for command, text in said.items() if command.startswith("isthmus agent results"))
    assert results.count("clicks@1.0.0") == 10, results
    (export,) = (text for command, text in said.items() if command.startswith("isthmus tunnel export"))
    assert '"payload": {"count"' in export, export
    assert not checkout.stack.running()
    # What comes next on the page works after what came before.
    assert (probing[0].split()[:2], probing[-1]) == (["make", "up"], "make down")
    for command in probing:
        status, output = checkout.type(command)
        if "# Unauthenticated" in command:
            assert status != 0
            assert "Unauthenticated" in output
        else:
            assert status == 0, f"`{command}` ended with {status}:\n{output}"
    assert not checkout.stack.running()


def test_every_file_that_the_readme_points_to_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readme_needs_two_commands() -> None:
    commands = block("Two commands")
    assert [command.split("#")[0].strip() for command in commands] == ["make demo", "make test"]
