from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.paths import check_path, check_tree


@pytest.mark.parametrize("path", ["a", "a.py", "data/x.json", "a/b/c", "…/é", ".hidden", "a b"])
def test_plain_paths_pass(path):
    assert check_path(path, "p") == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/../b",
        "./a",
        "a/.",
        "a\\b",
        "a\0b",
        "a\nb",
        "é" * 128,
        "\ud800",
        None,
        3,
    ],
)
def test_any_other_is_refused(path):
    with pytest.raises(Invalid) as caught:
        check_path(path, "resources[0].path")
    assert caught.value.message.startswith("resources[0].path: ")


@given(st.text("ab./\\ ", max_size=8))
def test_what_passes_stays_inside_its_folder(text):
    try:
        check_path(text, "p")
    except Invalid:
        return
    parts = (PurePosixPath("/root") / text).parts
    assert parts[:2] == ("/", "root")
    assert ".." not in parts
    assert "/".join(parts[2:]) == text


def test_a_file_is_no_folder():
    check_tree([("a/b", "x"), ("a/c", "y"), ("b", "z")])
    with pytest.raises(Invalid, match='y: "a/b/c" needs a folder where "a/b" is a file'):
        check_tree([("a/b", "x"), ("a/b/c", "y")])
