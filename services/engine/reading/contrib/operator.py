"""What an operator of ONNX Runtime is here: a schema of its own, and how its definition is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx
from onnx.defs import OpSchema

from services.engine.reading.contrib.definition import Definition

DOMAIN = "com.microsoft"
"""Of ONNX Runtime's own operators."""
VERSION = 1
"""Of the domain: there is no other."""
Define = Callable[[Definition], Sequence[str | None]]
"""Writes a definition; returns what it calls its outputs, None for those that nobody wants."""
Default = int | float | str | OpSchema.AttrType

_OPTION = OpSchema.FormalParameterOption
_ENDINGS = {"?": _OPTION.Optional, "*": _OPTION.Variadic}
INT, FLOAT, STRING = OpSchema.AttrType.INT, OpSchema.AttrType.FLOAT, OpSchema.AttrType.STRING
INTS, FLOATS = OpSchema.AttrType.INTS, OpSchema.AttrType.FLOATS


@dataclass(frozen=True)
class Contrib:
    """An operator of ONNX Runtime that is read by a definition in ONNX's own operators.

    Attributes:
        name: of it.
        inputs: their names; "x?" may be left out, "x*" is any number of them.
        outputs: the same.
        define: writes the definition.
        since: oldest opset of ONNX's default domain that has what the definition takes.
        attributes: each with its default, or its type where there is none.
        required: names of attributes that must be given.
        domain: of it.
        before: the opset in which ONNX took it up, from which on it is ONNX's; 0 where it never did.
        agreement: how results compare with those of ONNX Runtime, for the documentation.
        limits: what of it is refused, for the documentation.
    """

    name: str
    inputs: str
    outputs: str
    define: Define
    since: int = 7
    attributes: Mapping[str, Default] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    domain: str = DOMAIN
    before: int = 0
    agreement: str = "rounding"
    limits: str = ""

    @property
    def shown(self) -> str:
        """How tables and messages call it."""
        return f"{self.domain}:{self.name}" if self.domain else self.name

    @cached_property
    def schema(self) -> OpSchema:
        """The same as ONNX writes it. Types are left to the definition's operators."""
        return OpSchema(
            self.name,
            self.domain,
            VERSION,
            inputs=_parameters(self.inputs),
            outputs=_parameters(self.outputs),
            attributes=[self._attribute(name, default) for name, default in self.attributes.items()],
        )

    def _attribute(self, name: str, default: Default) -> OpSchema.Attribute:
        if isinstance(default, OpSchema.AttrType):
            return OpSchema.Attribute(name, default, required=name in self.required)
        return OpSchema.Attribute(name, onnx.helper.make_attribute(name, default))


def _parameters(names: str) -> list[OpSchema.FormalParameter]:
    return [
        OpSchema.FormalParameter(
            name.rstrip("?*"),
            "tensor(float)",
            param_option=_ENDINGS.get(name[-1], _OPTION.Single),
            is_homogeneous=False,
        )
        for name in names.split()
    ]
