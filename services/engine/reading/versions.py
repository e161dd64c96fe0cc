"""Versions of ONNX's operators: which a model imports, and old ones made new."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import ModelProto, version_converter

from libs.common.errors import Invalid
from services.engine.reading.functions import every_node
from services.engine.reading.limits import OLDEST_OPSET
from services.engine.reading.nodes import DEFAULT, OTHERS, schema_of


def opsets_of(model: ModelProto) -> dict[str, int]:
    """Return the versions of ONNX's domains that a model imports, that of the default one under "".

    Raises Invalid for two of one domain, for one that isn't known, and where there is none.
    """
    found: dict[str, int] = {}
    for item in model.opset_import:
        domain = "" if item.domain in DEFAULT else item.domain
        if domain not in ("", *OTHERS):
            continue  # of functions, or of nodes that are refused by name
        if found.setdefault(domain, item.version) != item.version:
            raise Invalid(
                f"the model imports versions {found[domain]} and {item.version} of {_named(domain)}"
            )
    if not found:
        raise Invalid("the model imports no version of ONNX's operators")
    newest = {"": onnx.defs.onnx_opset_version()}
    for schema in onnx.defs.get_all_schemas():
        newest[schema.domain] = max(newest.get(schema.domain, 1), schema.since_version)
    for domain, version in found.items():
        if not 1 <= version <= newest[domain]:
            kind = f"version {version} of {domain}" if domain else f"opset {version}"
            raise Invalid(f"the model has {kind}; 1 to {newest[domain]} are supported: export it again")
    return found


def modern(model: ModelProto, opsets: Mapping[str, int]) -> tuple[ModelProto, dict[str, int]]:
    """Return a model of opset 7 or newer that computes the same, and its versions.

    Raises Invalid, naming the node, for what ONNX's converter can't make of opset 7.
    """
    version = opsets.get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return model, dict(opsets)
    for position, node in enumerate(every_node(model.graph.node)):
        if node.domain in DEFAULT:
            schema_of("", node.op_type, version, f"node {node.name or f'#{position}'} ({node.op_type[:80]})")
    try:
        converted = version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # whatever the C++ code says of what it doesn't know
        text = " ".join(str(error).split())[:300]
        raise Invalid(
            f"the model has opset {version}, which can't be made opset {OLDEST_OPSET}: {text}; export it "
            "again"
        ) from error
    return converted, {**opsets, "": OLDEST_OPSET}


def _named(domain: str) -> str:
    return domain or "ONNX's default operators"
