"""The Dockerfile: what it copies is there and let through, and it names nothing but images."""

import re

import pytest

from deploy.docker.keys import SERVICE_UID
from deploy.local.layout import ROOT
from requirements import environment

FOLDER = ROOT / "deploy" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text("utf-8")
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
COPIES = [
    source
    for line in LINES
    if line.startswith("COPY ") and "--from=" not in line
    for source in line.split()[1:-1]
]
LET_THROUGH = [
    line.removeprefix("!")
    for line in (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    if line.startswith("!")
]


@pytest.mark.parametrize("source", COPIES)
def test_what_it_copies_is_there_and_reaches_the_builder(source: str) -> None:
    assert list(ROOT.glob(source)), source
    allowed = {path for pattern in LET_THROUGH for path in ROOT.glob(pattern)}
    for path in ROOT.glob(source):
        assert path in allowed or allowed & set(path.parents), path


def test_it_runs_as_nobody_who_matters() -> None:
    final = TEXT[TEXT.index("FROM ${PYTHON} AS base") :]
    users = [line.split()[1] for line in final.splitlines() if line.startswith("USER ")]
    assert users == [f"{SERVICE_UID}:{SERVICE_UID}"]


def test_everything_is_pinned() -> None:
    installs = [line for line in LINES if " install " in line and ("pip install" in line)]
    assert len(installs) >= 4
    for line in installs:
        for command in line.split("&&"):
            if "pip install" in command:
                assert "--require-hashes" in command or "--no-deps" in command, command
    (torch,) = re.findall(r"torch==\S+", TEXT)
    assert torch == environment.TORCH.partition("+")[0]


def test_no_address_but_those_of_images() -> None:
    assert not re.search(r"https?://|index-url|\.(io|org|com)/", TEXT)
