"""The workload table, from made-up counts and from the real registry."""

from libs.runtime.atomic import ATOMICS
from libs.runtime.workload import Workload, workload
from services.engine.domain.registry import REGISTRY


def test_the_published_counts_give_the_published_figures() -> None:
    published = Workload(backends=16, atomic=61, transform=45, composite=16, atoms=61)
    # 2 control-flow operators come on top in the paper.
    assert published.before + 2 == 1954
    assert published.after + 2 == 1055
    assert round(published.saved, 2) == 0.46


def test_operators_are_counted_by_kind() -> None:
    kinds = ("atomic", "atomic", "transform", "composite", "static")
    found = workload(kinds, atoms=3, backends=2)
    assert (found.atomic, found.transform, found.composite) == (2, 1, 1)
    assert (found.before, found.after) == (8, 10)


def test_the_real_registry_saves_work_with_many_backends() -> None:
    kinds = [operator.kind for operator in REGISTRY.values()]
    one, many = (workload(kinds, len(ATOMICS), backends) for backends in (1, 16))
    assert many.saved > one.saved
    assert many.saved > 0.3
    assert many.before == len([op for op in REGISTRY.values() if op.kind not in ("static", "control")]) * 16
