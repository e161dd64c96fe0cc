"""The registry of ONNX Runtime's operators: in order, documented, and as ONNX Runtime declares them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from services.engine.reading.contrib.operator import Contrib
from services.engine.reading.contrib.registry import CONTRIB, contrib_markdown

ROOT = Path(__file__).parents[6]


def test_the_documented_table_is_the_registry() -> None:
    assert contrib_markdown() in (ROOT / "docs/engine-operators.md").read_text()


def test_they_are_in_order_of_their_names() -> None:
    assert list(CONTRIB) == sorted(CONTRIB)
    assert all(CONTRIB[key].name == key[1] and CONTRIB[key].domain == key[0] for key in CONTRIB)


@pytest.mark.parametrize("operator", CONTRIB.values(), ids=lambda operator: operator.shown)
def test_schemas_are_those_of_onnx_runtime(operator: Contrib) -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    theirs = next(
        schema
        for schema in runtime.get_all_operator_schema()
        if (schema.domain, schema.name) == (operator.domain, operator.name) and schema.since_version == 1
    )
    ours = operator.schema
    assert (ours.min_input, ours.max_output) == (theirs.min_input, theirs.max_output)
    assert (ours.max_input, ours.min_output) == (theirs.max_input, theirs.min_output)
    for own, other in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
        options = [str(parameter.option).rpartition(".")[2] for parameter in other]
        assert [parameter.option.name for parameter in own] == options
    assert ours.attributes.keys() == theirs.attributes.keys()
    for name, attribute in theirs.attributes.items():
        own_attribute = ours.attributes[name]
        assert own_attribute.type.name == str(attribute.type).rpartition(".")[2]
        default = onnx.AttributeProto.FromString(attribute._default_value)
        if default.name:
            assert own_attribute.default_value == default
        elif name not in _STRICTER:
            assert own_attribute.required == attribute.required


_STRICTER = ("activation",)
"""Attributes that its schema lets be left out, and its kernel doesn't."""
