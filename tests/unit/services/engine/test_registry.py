from pathlib import Path

import onnx

from libs.runtime.atomic import operator_count
from services.engine.domain.registry import REGISTRY, markdown, workload_markdown

ROOT = Path(__file__).parents[4]


def test_the_documented_table_is_the_registry() -> None:
    assert markdown() in (ROOT / "docs/engine-operators.md").read_text()


def test_the_documented_workload_is_counted_from_the_registry() -> None:
    assert workload_markdown() in (ROOT / "docs/engine-operators.md").read_text()


def test_since_is_the_oldest_opset_that_has_the_operator_and_is_read() -> None:
    versions: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = f"{schema.domain}:{schema.name}".lstrip(":")
        versions.setdefault(name, []).append(schema.since_version)
    # Older ones are read as 7.
    oldest = {name: min(versions[name]) if ":" in name else max(7, min(versions[name])) for name in REGISTRY}
    assert {name: op.since for name, op in REGISTRY.items()} == oldest


def test_operators_are_in_order_and_say_where_they_come_from() -> None:
    assert list(REGISTRY) == sorted(REGISTRY)
    folder = ROOT / "services/engine/domain/decompose"
    for name, operator in REGISTRY.items():
        assert operator.name == name
        assert f'"{name}"' in (folder / f"{operator.family}.py").read_text()


def test_the_closed_set_is_far_smaller() -> None:
    assert len(REGISTRY) >= 190
    assert operator_count() < len(REGISTRY) / 3
