"""The workload table, from made-up counts and from the real registry."""

from libs.runtime.atomic import ATOMICS, HOST
from libs.runtime.workload import HEADINGS, OWN_BACKENDS, PUBLISHED, workload, workload_cells, workload_table
from services.engine.domain.registry import REGISTRY

KINDS = [operator.kind for operator in REGISTRY.values()]


def test_the_published_counts_give_the_published_figures() -> None:
    assert PUBLISHED.operators == 124
    assert PUBLISHED.before == 1954
    assert PUBLISHED.after == 1055
    assert round(PUBLISHED.saved, 2) == 0.46


def test_operators_are_counted_by_kind() -> None:
    kinds = ("atomic", "atomic", "transform", "composite", "static", "control")
    found = workload(kinds, atoms=3, host=4, backends=2)
    assert (found.atomic, found.transform, found.composite, found.control) == (2, 1, 1, 1)
    # Host operators, branches, loops and rules are written once, kernels for each backend.
    assert (found.before, found.after) == (4 * 2 + 1, (3 + 1) * 2 + (4 + 2) + 3)


def test_the_real_registry_saves_more_than_was_published() -> None:
    one, five, many = (workload(KINDS, len(ATOMICS), len(HOST), backends) for backends in (1, 5, 16))
    assert many.saved > five.saved > one.saved
    assert many.saved > PUBLISHED.saved
    control = KINDS.count("control")
    assert many.before == (len(REGISTRY) - control - KINDS.count("static")) * 16 + control
    # The closed set, each operator once for one backend, with the control flow.
    rules = sum(KINDS.count(kind) for kind in ("transform", "composite", "control"))
    assert one.after - rules == len(ATOMICS) + len(HOST) + 1 + 2


def test_the_table_has_the_papers_row_and_ours() -> None:
    rows = workload_table(KINDS, len(ATOMICS), len(HOST))
    assert [found.backends for _, found in rows] == [16, 16, len(OWN_BACKENDS), 1]
    cells = [workload_cells(label, found) for label, found in rows]
    assert cells[0] == ("Walle as published, 16 backends", "124", "1,954", "1,055", "46 %")
    assert all(len(row) == len(HEADINGS) for row in cells)
    assert "portable, AVX2, AVX-512, aarch64, CUDA" in cells[2][0]
