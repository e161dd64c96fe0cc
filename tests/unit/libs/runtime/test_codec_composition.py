"""Compositions as bytes and back, and what is counted before anything is made of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.engine.v1 import plan_pb2 as pb
from libs.common.errors import Invalid
from libs.runtime import plan as plans
from libs.runtime.codec import decode, encode
from libs.runtime.plan import (
    Action,
    Block,
    Branch,
    Composition,
    DataType,
    Dimension,
    Host,
    Loop,
    NamedRegister,
    OptionalType,
    Plan,
    Register,
    RegisterType,
    Run,
    SequenceType,
    SizeSource,
    TensorType,
)
from libs.runtime.testing import DIGEST, identity_plan

_INDEX = st.integers(0, (1 << 32) - 1)
_INDEXES = st.lists(_INDEX, max_size=4).map(tuple)
_NAME = st.text(max_size=6)
_SIZE = st.one_of(st.none(), st.integers(0, (1 << 64) - 1), st.sampled_from(["n", "m"]))
_TENSOR = st.builds(
    TensorType, st.sampled_from(DataType), st.one_of(st.none(), st.lists(_SIZE, max_size=8).map(tuple))
)
_TYPE: st.SearchStrategy[RegisterType] = st.recursive(
    _TENSOR,
    lambda inner: st.one_of(st.builds(SequenceType, inner), st.builds(OptionalType, inner)),
    max_leaves=2,
)
_SOURCE = st.one_of(st.builds(SizeSource, _INDEX, axis=_INDEX), st.builds(SizeSource, _INDEX, element=_INDEX))
_ACTION = st.builds(
    Action,
    st.one_of(
        st.builds(Run, _INDEX, _INDEXES, _INDEXES, st.lists(_SOURCE, max_size=3).map(tuple)),
        st.builds(Branch, _INDEX, _INDEX, _INDEX, _INDEXES),
        st.builds(
            Loop, st.one_of(st.none(), _INDEX), st.one_of(st.none(), _INDEX), _INDEX, _INDEXES, _INDEXES
        ),
        st.builds(
            Host,
            _NAME,
            _INDEXES,
            _INDEXES,
            st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3).map(tuple),
            st.lists(_NAME, max_size=3).map(tuple),
        ),
    ),
    _NAME,
)


def _lists(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=4).map(tuple)


_COMPOSITION = st.builds(
    Composition,
    st.sampled_from([(), (Plan("", "", tensors=identity_plan().tensors),)]),
    _lists(st.builds(Register, _TYPE, st.one_of(st.none(), st.binary(max_size=8)), _lists(_NAME))),
    _lists(st.builds(NamedRegister, _NAME, _INDEX)),
    _lists(st.builds(NamedRegister, _NAME, _INDEX)),
    _lists(st.builds(Block, _INDEXES, _lists(_ACTION), _INDEXES)),
)


def plan(composition: Composition) -> Plan:
    dimensions = (Dimension("n", 0, 9), Dimension("m", 1, 2))
    return Plan(DIGEST, "a test", dimensions, composition=composition)


def _levels(type_: RegisterType) -> int:
    return 0 if isinstance(type_, TensorType) else 1 + _levels(type_.element)


@settings(deadline=None)
@given(_COMPOSITION)
def test_a_composition_comes_back_as_it_was_and_in_the_same_bytes(composition: Composition) -> None:
    data = encode(plan(composition))
    if any(_levels(register.type) > 3 for register in composition.registers):
        with pytest.raises(Invalid, match="more than 3 deep"):
            decode(data)
        return
    assert decode(data) == plan(composition)
    assert encode(decode(data)) == data


def test_every_message_field_is_carried() -> None:
    """What protobuf holds and the types don't would be lost silently."""
    messages = (
        "Composition",
        "NamedRegister",
        "Block",
        "Run",
        "SizeSource",
        "Branch",
        "Loop",
        "Host",
        "Equality",
    )
    for name in messages:
        message = pb.DESCRIPTOR.message_types_by_name[name]
        assert {f.name for f in message.fields} == {f.name for f in fields(getattr(plans, name))}, name


def _flood(**parts: int) -> bytes:
    """Return a plan whose lists have so many entries."""
    message = pb.Plan()
    message.ParseFromString(encode(plan(Composition((), (), (), (), ()))))
    block = message.composition.blocks.add()
    run, host, loop = (block.actions.add() for _ in range(3))
    run.run.inputs.extend([1] * parts.get("inputs", 0))
    for _ in range(parts.get("dimensions", 0)):
        run.run.dimensions.add(axis=0)
    host.host.integers.extend([1] * parts.get("integers", 0))
    host.host.texts.extend(["a"] * parts.get("texts", 0))
    loop.loop.initial.extend([1] * parts.get("initial", 0))
    block.results.extend([1] * parts.get("results", 0))
    register = message.composition.registers.add()
    register.type.tensor.type = pb.DATA_TYPE_BOOL
    register.type.tensor.ranked = True
    for _ in range(parts.get("shape", 0)):
        register.type.tensor.shape.add(fixed=1)
    for _ in range(parts.get("parts", 0)):
        message.composition.parts.add()
    for _ in range(parts.get("blocks", 0)):
        message.composition.blocks.add()
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("name", "count", "says"),
    [
        ("inputs", 1_025, "blocks[0].actions[0].inputs has 1025 entries, more than 1024"),
        ("dimensions", 65, "blocks[0].actions[0].dimensions has 65 entries, more than 64"),
        ("integers", 17, "blocks[0].actions[1].integers has 17 entries"),
        ("texts", 17, "blocks[0].actions[1].texts has 17 entries"),
        ("initial", 65_537, "blocks[0].actions[2].initial has 65537 entries"),
        ("results", 65_537, "blocks[0].results has 65537 entries"),
        ("shape", 9, "registers[0].shape has 9 entries, more than 8"),
        ("parts", 4_097, "it has more than 4096 parts"),
        ("blocks", 1_024, "it has more than 1024 blocks"),
    ],
)
def test_what_repeats_is_counted_before_anything_is_made_of_it(name: str, count: int, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(_flood(**{name: count}))
    assert says in caught.value.message
    assert caught.value.reason == "BAD_PLAN"


def test_a_part_is_no_composition() -> None:
    message = pb.Plan()
    message.ParseFromString(encode(plan(Composition((), (), (), (), ()))))
    message.composition.parts.add().composition.blocks.add()
    with pytest.raises(Invalid, match="a part that is a composition itself"):
        decode(message.SerializeToString())


def test_kinds_that_arent_known_are_told_with_their_place() -> None:
    message = pb.Plan()
    message.ParseFromString(_flood())
    message.composition.blocks[0].actions[1].ClearField("kind")
    with pytest.raises(Invalid, match=r"blocks\[0\]\.actions\[1\] is of a kind .* update it"):
        decode(message.SerializeToString())
    message.ParseFromString(_flood())
    message.composition.registers[0].type.tensor.type = 99  # type: ignore[assignment]
    with pytest.raises(Invalid, match=r"registers\[0\] has elements of type 99, .* update it"):
        decode(message.SerializeToString())
    message.composition.registers[0].type.ClearField("kind")
    with pytest.raises(Invalid, match=r"registers\[0\] is of a kind of type"):
        decode(message.SerializeToString())
