"""ARCHITECTURE.md names functions and files; they have to be there."""

import ast
import re

import pytest

from deploy.local.layout import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
SOURCES = [
    path
    for folder in ("libs", "services", "deploy", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "protos" not in path.parts
]


def members() -> set[str]:
    """Return every `Class.method` of the code, and `Service.Rpc` of the contracts."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, functions)}
    for path in (ROOT / "protos").rglob("*.proto"):
        for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", path.read_text("utf-8"), re.M | re.S):
            found |= {f"{service}.{rpc}" for rpc in re.findall(r"rpc (\w+)\(", body)}
    return found


def test_every_method_that_it_names_is_there() -> None:
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", TEXT)) - {"ARCHITECTURE.md"}
    assert len(named) > 20
    assert sorted(named - members()) == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py)`", TEXT))))
def test_every_file_that_it_names_is_there(name: str) -> None:
    assert any(path.as_posix().endswith("/" + name) for path in SOURCES), name
