"""Plans as bytes and back."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.engine.v1 import plan_pb2
from libs.common.errors import Error, Invalid
from libs.runtime.atomic import ATOMICS
from libs.runtime.codec import decode, encode
from libs.runtime.plan import MAJOR, DataType, Operation, Plan
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder, identity_plan, linear_plan
from libs.runtime.wire import MAX_STRUCTURE_BYTES

_OF_A_MODEL = b"\x1a\x07sha256:"


def encode_varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _everything() -> Plan:
    plan = PlanBuilder()
    batch = plan.dimension("batch")
    x = plan.input("x", [batch, 3])
    doubled = plan.compute("add", [x, x], [batch, 3], origin="double (Add)")
    turned = plan.raster([plan.region(doubled, [1, batch])], [3, batch], fill=0.5, origin="turn (Transpose)")
    plan.output("y", plan.compute("reduce_max", [turned], [batch], axes=[0]))
    plan.output("ids", plan.constant([[1, -2]], DataType.INT64))
    return plan.build()


def _wire(plan: Plan) -> plan_pb2.Plan:
    return plan_pb2.Plan.FromString(encode(plan))


@pytest.mark.parametrize("plan", [identity_plan(), linear_plan([1, 2]), _everything()])
def test_a_plan_comes_back_as_it_was_and_in_the_same_bytes(plan: Plan) -> None:
    data = encode(plan)
    assert decode(data) == plan
    assert encode(decode(data)) == data


def test_the_numbers_of_enums_are_those_of_the_protocol() -> None:
    assert {t.name: int(t) for t in DataType} == {
        name.removeprefix("DATA_TYPE_"): number
        for name, number in plan_pb2.DataType.items()
        if number != plan_pb2.DATA_TYPE_UNSPECIFIED
    }
    assert {o.name: int(o) for o in Operation} == {
        name.removeprefix("OPERATION_"): number
        for name, number in plan_pb2.Extent.Operation.items()
        if number != plan_pb2.Extent.OPERATION_UNSPECIFIED
    }


def test_every_message_field_is_carried() -> None:
    """What protobuf holds and the types don't would be lost silently."""
    fields = {name: {f.name for f in plan_pb2.DESCRIPTOR.message_types_by_name[name].fields} for name in
              plan_pb2.DESCRIPTOR.message_types_by_name}  # fmt: skip
    assert fields["Plan"] - {"major", "minor"} == set(Plan.__dataclass_fields__)


@pytest.mark.parametrize(("major", "remedy"), [(MAJOR + 1, "update the runtime"), (0, "make the plan again")])
def test_another_major_version_is_refused_with_what_to_do(major: int, remedy: str) -> None:
    message = _wire(identity_plan())
    message.major = major
    with pytest.raises(Invalid, match=remedy) as caught:
        decode(message.SerializeToString())
    assert caught.value.reason == "PLAN_VERSION"


def test_a_newer_minor_version_with_unknown_fields_is_read() -> None:
    message = _wire(identity_plan())
    message.minor = 9
    data = message.SerializeToString() + b"\xfa\x07\x03new"  # field 127, bytes
    assert decode(data) == identity_plan()


def test_unknown_kinds_are_refused_with_their_place() -> None:
    message = _wire(_everything())
    message.steps[1].ClearField("kind")
    with pytest.raises(Invalid, match=r"steps\[1\].*kind.*update"):
        decode(message.SerializeToString())
    message = _wire(_everything())
    message.tensors[2].type = 99  # type: ignore[assignment]
    with pytest.raises(Invalid, match=r"tensors\[2\]\.type is 99"):
        decode(message.SerializeToString())
    message = _wire(_everything())
    message.extents[3].operation = 77  # type: ignore[assignment]
    with pytest.raises(Invalid, match=r"extents\[3\]\.operation is 77"):
        decode(message.SerializeToString())
    message = _wire(_everything())
    message.tensors[0].ClearField("storage")
    with pytest.raises(Invalid, match=r"tensors\[0\] is neither"):
        decode(message.SerializeToString())


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x08", b"PK\x03\x04 a zip", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b\x0c"]
)
def test_bytes_that_are_no_plan_are_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode(data)


def test_no_bytes_are_told_apart() -> None:
    with pytest.raises(Invalid, match="plan: it is empty"):
        decode(b"")


@pytest.mark.parametrize("version", [b"\x08\x01", b"\x08\x08"])
@pytest.mark.parametrize("producer", [b"", b"\x12\x07pytorch", b"\x12\x07pytorch\x1a\x032.1"])
def test_an_onnx_model_is_told_apart(version: bytes, producer: bytes) -> None:
    graph = b"\x3a\x03\x12\x01g"
    with pytest.raises(
        Invalid, match="looks like an ONNX model; make a plan of it with `isthmus model opt"
    ) as caught:
        decode(version + producer + graph + b"\x42\x02\x10\x11")
    assert caught.value.reason == "BAD_PLAN"


def test_a_plan_whose_digest_is_wrong_is_left_to_its_check() -> None:
    message = _wire(linear_plan([1.0]))
    message.model_digest = "x"
    assert decode(message.SerializeToString()).model_digest == "x"


def test_a_large_onnx_model_is_told_apart_before_bounds_are_looked_at() -> None:
    size = MAX_STRUCTURE_BYTES + 1
    graph = b"\x3a" + encode_varint(size + 5) + b"\x2a" + encode_varint(size) + bytes(size)
    with pytest.raises(Invalid, match="looks like an ONNX model"):
        decode(b"\x08\x08" + graph + b"\x42\x02\x10\x11")


@pytest.mark.parametrize("data", [b"\x08\x07", b"some text", bytes(range(256)), b"\x08\x09\x22\x07isthmus"])
def test_what_names_no_model_is_no_plan_of_any_version(data: bytes) -> None:
    with pytest.raises(Invalid, match="it is no plan, or it is damaged") as caught:
        decode(data)
    assert caught.value.reason == "BAD_PLAN"


def test_a_flood_of_tiny_parts_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Invalid, match="more than 65536 steps"):
        decode(b"\x08\x01" + _OF_A_MODEL + b"\x5a\x00" * 70_000)
    with pytest.raises(Invalid, match="apart from constants"):
        decode(b"\x08\x01" + _OF_A_MODEL + b"\x5a\xff\xff\xff\x03" + b"\x00" * (MAX_STRUCTURE_BYTES - 1))


def _repeated(**parts: object) -> bytes:
    message = _wire(_everything())
    for step in message.steps:
        if step.HasField("raster"):
            region = step.raster.regions[0]
            if "regions" in parts:
                step.raster.regions.extend([region] * int(str(parts["regions"])))
            if "axes" in parts:
                region.source.axes.extend([region.source.axes[0]] * int(str(parts["axes"])))
            if "strides" in parts:
                region.destination_strides.extend([0] * int(str(parts["strides"])))
        elif "inputs" in parts:
            step.compute.inputs.extend([step.compute.inputs[0]] * int(str(parts["inputs"])))
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"regions": 131_072}, "has 131073 regions, more than 131072"),
        ({"axes": 7}, r"steps\[1\]\.regions\[0\]\.source\.axes has 9 entries, more than 8"),
        ({"strides": 1_000_000}, r"steps\[1\]\.regions\[0\]\.destination_strides has 1000002 entries"),
        ({"inputs": 9}, r"steps\[0\]\.inputs has 11 entries"),
    ],
)
def test_what_repeats_is_counted_before_anything_is_made_of_it(parts: dict[str, int], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        decode(_repeated(**parts))


def test_a_flood_of_fields_of_one_tensor_is_refused_soon() -> None:
    flood = b"\x08\x0b" * 700_000
    size = len(flood)
    varint = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    with pytest.raises(Invalid, match="more than 600000 fields"):
        decode(b"\x08\x01" + _OF_A_MODEL + b"\x3a" + varint + flood)


def test_a_large_constant_isnt_counted_as_structure() -> None:
    plan = PlanBuilder()
    plan.output("y", plan.constant(np.zeros(MAX_STRUCTURE_BYTES // 4 + 1, np.float32)))
    assert decode(encode(plan.build())) == plan.build()


_SAMPLES = [encode(plan) for plan in (identity_plan(), linear_plan([0.5, -1.0, 2.0]), _everything())]


@given(st.sampled_from(_SAMPLES), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6))
def test_damaged_plans_are_refused_or_run_within_their_memory(
    data: bytes, edits: list[tuple[int, int]]
) -> None:
    damaged = bytearray(data)
    for position, byte in edits:
        damaged[position % len(damaged)] = byte
    try:
        plan = decode(bytes(damaged))
        program = Program(plan, max_buffer_bytes=1 << 20)
        sizes = {d.name: d.minimum for d in plan.dimensions}
        shapes = {s.name: [sizes.get(str(n), n) for n in s.shape] for s in program.inputs}
        if any(isinstance(n, str) for shape in shapes.values() for n in shape):
            return
        program.run({s.name: np.ones(shapes[s.name], s.dtype) for s in program.inputs})  # type: ignore[arg-type]
    except Error:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(Invalid):
        decode(b"\x08\x01" + _OF_A_MODEL + data)


def test_a_negative_index_cant_be_written() -> None:
    plan = identity_plan()
    with pytest.raises(ValueError, match="-1"):
        encode(replace(plan, outputs=(replace(plan.outputs[0], tensor=-1),)))


def test_every_operator_survives() -> None:
    for name in ATOMICS:
        plan = PlanBuilder()
        x = plan.input("x", [2])
        plan.output("y", plan.compute(name, [x], [2]))
        assert decode(encode(plan.build())) == plan.build()
