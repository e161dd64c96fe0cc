"""Mutated files: reading and decomposition end, in a plan or in an error that is Invalid, and soon."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from services.engine.domain.check_program import check_program
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.program import Program
from services.engine.reading import read_model
from services.engine.reading.inspection import inspect_model
from services.engine.testing import small
from services.engine.testing_models import attention, beside, conv_net, embedding, mlp, repeated

MODELS = (small().SerializeToString(), mlp(), conv_net(), attention(), embedding(), repeated(), beside()[0])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A model with a few bytes changed, cut out, repeated or inserted."""
    data = bytearray(draw(st.sampled_from(MODELS)))
    for _ in range(draw(st.integers(1, 6))):
        if not data:
            break
        place = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[place] = draw(st.integers(0, 255))
            case 1:
                del data[place : place + draw(st.integers(1, 32))]
            case 2:
                data[place:place] = data[place : place + draw(st.integers(1, 32))]
            case _:
                data[place:place] = draw(st.binary(min_size=1, max_size=8))
    return bytes(data)


@settings(max_examples=500, deadline=None)
@given(mutated())
def test_mutated_models_are_read_or_refused(data: bytes) -> None:
    try:
        graph = read_model(data)
    except Invalid:
        return
    assert graph.outputs


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_mutated_models_are_planned_or_refused(data: bytes) -> None:
    try:
        program = decompose(read_model(data))
    except Invalid:
        return
    if isinstance(program, Program):
        check_program(program, "decompose")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    try:
        read_model(data)
    except Invalid:
        return
    raise AssertionError("random bytes were read as a model")


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_mutated_models_are_inspected_and_nothing_wrong_is_missed(data: bytes) -> None:
    try:
        found = inspect_model(data, {}, None)
    except Invalid:
        # Then it is no model at all.
        with pytest.raises(Invalid):
            read_model(data)
        return
    refused = False
    try:
        decompose(read_model(data))
    except Invalid:
        refused = True
    assert bool(found.faults) == refused
    assert json.dumps(asdict(found))
