"""docs/compute.md: its examples run, its table is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from libs.compute.matrix import catalogue

PAGE = Path(__file__).parents[4] / "docs" / "compute.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number: int) -> None:
    exec(compile(EXAMPLES[number], f"{PAGE.name}, example {number}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


def test_the_table_is_that_of_the_code() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- functions -->\n")
    table, _, _ = rest.partition("<!-- end -->")
    assert table == catalogue.markdown(), (
        "write libs.compute.matrix.catalogue.markdown() into docs/compute.md"
    )


def test_there_are_at_least_160_functions() -> None:
    assert len(catalogue.functions()) >= 160
