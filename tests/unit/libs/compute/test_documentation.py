"""The pages of the compute library: their examples run, their tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from libs.compute.image import catalogue as images
from libs.compute.matrix import catalogue as matrices

DOCS = Path(__file__).parents[4] / "docs"
PAGES = {"compute.md": matrices, "compute-image.md": images}
EXAMPLES = {
    f"{page}-{number}": code
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S))
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str) -> None:
    exec(compile(EXAMPLES[name], f"docs/{name}", "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_there_are_examples(page: str) -> None:
    assert sum(name.startswith(f"{page}-") for name in EXAMPLES) >= 3


@pytest.mark.parametrize("page", PAGES)
def test_the_table_is_that_of_the_code(page: str) -> None:
    _, _, rest = (DOCS / page).read_text().partition("<!-- functions -->\n")
    table, _, _ = rest.partition("<!-- end -->")
    module = PAGES[page]
    assert table == module.markdown(), f"write {module.__name__}.markdown() into docs/{page}"


@pytest.mark.parametrize(("page", "least"), [("compute.md", 160), ("compute-image.md", 70)])
def test_there_are_as_many_functions(page: str, least: int) -> None:
    assert len(set(PAGES[page].functions())) >= least
