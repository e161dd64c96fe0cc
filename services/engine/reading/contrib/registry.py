"""The operators of ONNX Runtime that are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.engine.reading.contrib import activation, attention, narrow, normalisation, products, quantised
from services.engine.reading.contrib.operator import Contrib

_FAMILIES = (normalisation, activation, products, narrow, quantised, attention)


def _collected() -> Mapping[tuple[str, str], Contrib]:
    found: dict[tuple[str, str], Contrib] = {}
    for family in _FAMILIES:
        for operator in family.OPERATORS:
            key = operator.domain, operator.name
            assert key not in found, key
            found[key] = operator
    return MappingProxyType(dict(sorted(found.items())))


CONTRIB = _collected()
"""By domain and name, in order."""


def find(domain: str, operator: str, opset: int) -> Contrib | None:
    """Return what is declared of an operator; None where that is nothing, or it is ONNX's in this opset."""
    found = CONTRIB.get((domain, operator))
    return None if found is None or (found.before and opset >= found.before) else found


def contrib_names() -> list[str]:
    """Return the names of those that are of ONNX Runtime's own domain."""
    return [name for domain, name in CONTRIB if domain]


def contrib_markdown() -> str:
    """Return the table of docs/engine-operators.md."""
    rows = ["| operator | from opset | agrees | refused |", "|---|---|---|---|"]
    rows += [f"| {op.shown} | {_opsets(op)} | {op.agreement} | {op.limits} |" for op in CONTRIB.values()]
    return "\n".join(rows)


def _opsets(operator: Contrib) -> str:
    return f"{operator.since} to {operator.before - 1}" if operator.before else str(operator.since)
