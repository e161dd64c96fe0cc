"""From a script's values to tensors and back."""

import base64
import sys
from struct import pack

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.task.tensor import DATATYPES, Tensor, tensor_fault
from services.device_agent.vm.worker.asking import Arrays
from services.device_agent.vm.worker.failed import Failed


@pytest.fixture(scope="module")
def arrays():
    made = Arrays(lambda: 0)
    made.prepare()
    return made


def as_tensor(value):
    content = base64.b64decode(value["content"])
    return Tensor(value["name"], value["datatype"], tuple(value["shape"]), content)


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "content"),
    [
        (3.0, "INT64", (), pack("<q", 3)),
        (True, "INT64", (), pack("<q", 1)),
        (-(2.0**63), "INT64", (), pack("<q", -(2**63))),
        (2**64 - 1, "UINT64", (), pack("<Q", 2**64 - 1)),
        (numpy.int8(-3), "INT64", (), pack("<q", -3)),
        (numpy.array([1, 2], ">i4")[::-1], "INT64", (2,), pack("<2q", 2, 1)),
        (numpy.arange(6, dtype="<i8").reshape(2, 3).T, "INT64", (3, 2), pack("<6q", 0, 3, 1, 4, 2, 5)),
        (numpy.zeros((0, 3)), "INT64", (0, 3), b""),
        ([], "BOOL", (0,), b""),
        (True, "BOOL", (), b"\1"),
        ([[1], [2.5]], "FP32", (2, 1), pack("<2f", 1, 2.5)),
        (float("inf"), "FP32", (), pack("<f", float("inf"))),
        (1.5, "FP16", (), pack("<e", 1.5)),
        (((1, 2), (3, 4)), "UINT8", (2, 2), bytes([1, 2, 3, 4])),
    ],
)
def test_values_are_converted_to_the_declared_datatype(arrays, value, datatype, shape, content):
    tensor = as_tensor(arrays.encode("x", value, datatype))
    assert tensor == Tensor("x", datatype, shape, content)
    assert not tensor_fault(tensor)


class Odd:
    def __array__(self, *_, **__):
        raise RuntimeError("odd")


@pytest.mark.parametrize(
    ("value", "datatype", "says"),
    [
        ("seven", "INT64", "which is no INT64"),
        (None, "INT64", "which is no INT64"),
        (2**70, "INT64", "which is no INT64"),
        (2**63, "INT64", "a value that no INT64 is"),
        (2.0**63, "INT64", "a value that no INT64 is"),
        (-1, "UINT8", "a value that no UINT8 is"),
        (256, "UINT8", "a value that no UINT8 is"),
        (0.5, "INT64", "a value that no INT64 is"),
        (float("nan"), "INT64", "a value that no INT64 is"),
        ([[1], [2, 3]], "INT64", "is no array: its lists aren't equally long and deep"),
        (["a", "bcd"], "INT64", "holds texts, which is no INT64"),
        ([1, None], "INT64", "holds None, which is no INT64"),
        ([{}], "FP32", "holds an object of the type dict, which is no FP32"),
        ([2**70], "INT64", "holds a whole number of more than 64 bits, which is no INT64"),
        ([1, 0], "BOOL", "holds whole numbers, which is no BOOL"),
        (1e300, "FP32", "too large for FP32"),
        (70_000, "FP16", "too large for FP16"),
        (1j, "FP32", "which is no FP32"),
        (1, "BOOL", "which is no BOOL"),
        (Odd(), "INT64", "is no array: RuntimeError: odd"),
        (b"abc", "FP32", "which is no FP32"),
        (numpy.zeros(70_000, "<f4"), "FP32", "all inputs together have at most 262144"),
    ],
)
def test_a_value_that_does_not_convert_is_refused_by_name(arrays, value, datatype, says):
    with pytest.raises(Failed) as caught:
        arrays.encode("x" * 1000, value, datatype)
    assert caught.value.reason == "BAD_REQUEST"
    assert caught.value.message.startswith(f"input '{'x' * 64}' ")
    assert says in caught.value.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=2), children, max_size=2)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from(list(DATATYPES)))
def test_any_value_becomes_a_whole_tensor_or_is_refused(arrays, value, datatype):
    try:
        tensor = as_tensor(arrays.encode("x", value, datatype))
    except Failed:
        return
    assert tensor.datatype == datatype
    assert not tensor_fault(tensor)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(DATATYPES)), st.lists(st.integers(0, 3), max_size=3), st.randoms())
def test_an_answer_comes_back_as_it_was_encoded(arrays, datatype, shape, random):
    count = int(numpy.prod(shape, dtype=int))
    content = bytes(random.getrandbits(1) for _ in range(count * DATATYPES[datatype]))
    tensor = {
        "name": "y",
        "datatype": datatype,
        "shape": shape,
        "content": base64.b64encode(content).decode(),
    }
    (array,) = arrays.decode([tensor]).values()
    assert array.flags.writeable
    assert as_tensor(arrays.encode("y", array, datatype)) == Tensor("y", datatype, tuple(shape), content)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(DATATYPES)), st.lists(st.integers(0, 3) | st.integers(0, 2**62), max_size=8))
def test_a_shape_that_passes_for_a_tensors_is_one_that_arrays_have(arrays, datatype, shape):
    if not tensor_fault(Tensor("y", datatype, tuple(shape), b"")):
        tensor = {"name": "y", "datatype": datatype, "shape": shape, "content": ""}
        (array,) = arrays.decode([tensor]).values()
        assert array.shape == tuple(shape)


def test_without_numpy_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    arrays = Arrays(lambda: 0)
    arrays.prepare()
    assert arrays.fault.startswith("this device can't ask models: ")
