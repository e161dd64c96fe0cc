"""Versions of ONNX's operators: which a model imports, and old ones made new."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import ModelProto

from libs.common.errors import Invalid
from services.engine.reading.limits import OLDEST_OPSET
from services.engine.reading.nodes import DEFAULT, OTHERS
from services.engine.reading.renewal import renew


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


def modernised(model: ModelProto, opsets: Mapping[str, int]) -> dict[str, int]:
    """Make a model of opset 1 to 6 one of opset 7 that computes the same, in place; return its versions.

    Raises Invalid, naming the node, for what can't be written so.
    """
    version = opsets.get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return dict(opsets)
    renew(model, version)
    return {**opsets, "": OLDEST_OPSET}


def _named(domain: str) -> str:
    return domain or "ONNX's default operators"
