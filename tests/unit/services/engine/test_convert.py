"""Messages and values: what goes out comes back, and what is malformed is refused with its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from isthmus.engine.v1 import engine_pb2
from libs.common.blobs import BlobRef
from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS, HOST
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType
from services.engine import convert
from services.engine.domain.explanation import (
    Explanation,
    Figures,
    GroupText,
    NodeText,
    Origins,
    StepText,
    TensorText,
)
from services.engine.domain.model import Model, Stage
from services.engine.domain.registry import REGISTRY

dtypes = st.sampled_from([DTYPES[type_] for type_ in DataType if type_ is not DataType.STRING])


def _arrays(dtype: np.dtype) -> st.SearchStrategy[np.ndarray]:
    """Return arrays of any elements; of ml_dtypes' types, which hypothesis doesn't know, of a few."""
    shapes = arrays_of.array_shapes(min_dims=0, min_side=0)
    if dtype.isbuiltin == 1:
        return arrays_of.arrays(dtype, shapes)
    return arrays_of.arrays(np.bool_, shapes).map(lambda array: array.astype(dtype))


tensors = dtypes.flatmap(_arrays)


@given(st.dictionaries(st.text(max_size=5), tensors, max_size=4))
def test_arrays_come_back_as_they_went(given_arrays: dict[str, np.ndarray]) -> None:
    back = convert.arrays(convert.tensors(list(given_arrays.items())))
    assert back.keys() == given_arrays.keys()
    for name, array in given_arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


@given(
    st.builds(
        engine_pb2.InferTensor,
        name=st.text(max_size=3),
        type=st.integers(0, 15),
        shape=st.lists(st.integers(0, 2**63), max_size=10),
        data=st.binary(max_size=32),
    )
)
def test_any_tensor_is_read_or_refused_with_its_place(message: engine_pb2.InferTensor) -> None:
    place, size = "inputs[0]", len(message.data)
    try:
        (array,) = convert.arrays([message]).values()
    except Invalid as error:
        place = error.metadata["field"]
    else:
        size = array.nbytes
    assert (place, size) == ("inputs[0]", len(message.data))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (engine_pb2.InferTensor(name="x", type=0), "type: 0 is not a type"),
        (engine_pb2.InferTensor(name="x", type=11, shape=[1] * 9), "more than 8 sizes"),
        (engine_pb2.InferTensor(name="x", type=11, shape=[2], data=b"1234"), "has 4 bytes"),
        (engine_pb2.InferTensor(name="x", type=11, shape=[0, 2**30, 2**31]), "more than 1099511627776"),
        (engine_pb2.InferTensor(name="x", type=1, shape=[1], data=b"\2"), "neither 0 nor 1"),
    ],
)
def test_what_is_wrong_with_a_tensor(message: engine_pb2.InferTensor, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        convert.arrays([message])


def test_a_name_twice_and_too_many() -> None:
    one = engine_pb2.InferTensor(name="x", type=11, shape=[0])
    with pytest.raises(Invalid, match="'x' comes twice"):
        convert.arrays([one, one])
    with pytest.raises(Invalid, match="more than 1024"):
        convert.arrays([one] * 1025)


def test_operators_come_by_pages() -> None:
    found, token = [], ""
    for _ in range(100):
        page = convert.operators(REGISTRY, engine_pb2.ListOperatorsRequest(page_size=20, page_token=token))
        found.extend(page.operators)
        assert list(page.atomic_operators) == sorted(ATOMICS)
        assert list(page.host_operators) == sorted(HOST)
        token = page.next_page_token
        if not token:
            break
    assert [each.name for each in found] == sorted(REGISTRY)
    assert all(each.kind and each.family and each.since_opset for each in found)
    with pytest.raises(Invalid):
        convert.operators(REGISTRY, engine_pb2.ListOperatorsRequest(page_token="xyz"))


def test_an_explanation_of_a_long_plan_fits_a_message() -> None:
    output = TensorText("t1", DataType.FLOAT32, ("batch", "4"))
    step = StepText("add", output, "x" * 5000, calculations=2**70, moved_bytes=-1, regions=0)
    found = Explanation("sha256:0", (), (), (), (step,) * 20_000, 0, 0, None, {"add": 20_000})
    message = convert.explanation(found)
    assert 1000 < len(message.steps) < 20_000
    assert message.ByteSize() < 3 * 1024 * 1024
    assert [message.steps[0].calculations, message.steps[0].moved_bytes] == [2**64 - 1, 0]
    assert message.operators_after[0].count == 20_000


def test_nodes_and_groups_of_a_large_plan_fit_a_message_too() -> None:
    output = TensorText("t1", DataType.FLOAT32, ("batch", "4"))
    step = StepText("add", output, "x" * 5000, 1, 1, 0, tuple(range(64)))
    nodes = tuple(NodeText("n" * 4000, "Add", tuple(range(40)), 1) for _ in range(5000))
    group = GroupText("part", "y" * 5000, 0, 0, 1, figures=Figures({"add": 1}, 1, 1, 1, 1, 1, 1, 1))
    found = Explanation(
        "sha256:0",
        (),
        (),
        (),
        (step,) * 20_000,
        0,
        0,
        Origins({"Add": 5000}, 0, None, nodes),
        groups=(group,) * 5000,
        became=(tuple(range(9000)),) * 5000,
    )
    message = convert.explanation(found)
    assert min(len(message.steps), len(message.nodes), len(message.groups)) > 300
    assert message.ByteSize() < 3.5 * 1024 * 1024
    assert len(message.nodes[0].steps) < 9000


def test_an_explanation_keeps_all_that_is_told() -> None:
    output = TensorText("t1", DataType.INT8, ("n",))
    before = Figures({"raster": 2}, 3, 40, 30, 5, 60, 70, 80)
    after = Figures({"add": 1}, 0, 4, 0, 5, 6, 7, 8)
    found = Explanation(
        "sha256:0",
        (),
        (),
        (),
        (StepText("add", output, "a (Add)", 5, 4, 0, (), 1, 6),),
        0,
        7,
        Origins({"Add": 1}, 2, before, (NodeText("a", "Add", (), 3), NodeText("b", "If", (0,), 0, 0))),
        {"add": 1},
        {"n": 4},
        after,
        (GroupText("plan", "", None, 0, 1), GroupText("loop", "b (If)", 0, 0, 1, 9, (0,), after)),
        ((0,), ()),
    )
    message = convert.explanation(found)
    assert dict(message.sizes) == {"n": 4}
    for figures, text in (
        (before, message.before),
        (after, message.after),
        (after, message.groups[1].figures),
    ):
        assert {each.operator: each.count for each in text.operators} == figures.operators
        assert (text.region_count, text.moved_bytes, text.raster_bytes, text.calculations) == (
            figures.regions, figures.moved_bytes, figures.raster_bytes, figures.calculations
        )  # fmt: skip
        assert (text.peak_bytes, text.planned_bytes, text.unshared_bytes) == (
            figures.peak_bytes, figures.planned_bytes, figures.unshared_bytes
        )  # fmt: skip
    (step,) = message.steps
    assert (step.group, step.living_bytes, step.output.type) == (1, 6, int(DataType.INT8))
    first, second = message.nodes
    assert (first.written_count, list(first.steps), first.HasField("inside")) == (3, [0], False)
    assert (list(second.reads), second.inside, list(second.steps)) == ([0], 0, [])
    plan, loop = message.groups
    assert (plan.kind, plan.HasField("parent"), plan.HasField("figures")) == (
        engine_pb2.GroupSpec.KIND_PLAN, False, False
    )  # fmt: skip
    assert (loop.kind, loop.parent, loop.round_count, list(loop.reads)) == (
        engine_pb2.GroupSpec.KIND_LOOP, 0, 9, [0]
    )  # fmt: skip


def test_too_many_sizes_are_refused() -> None:
    sizes = {f"d{number}": 1 for number in range(1025)}
    with pytest.raises(Invalid, match="sizes: 1025 are more than 1024"):
        convert.sizes(engine_pb2.ExplainRequest(sizes=sizes))
    assert convert.sizes(engine_pb2.ExplainRequest(sizes={"n": 3})) == {"n": 3}


def test_a_stage_keeps_its_time() -> None:
    message = convert.progress(Stage("merge", 1.25, "12 rasters"))
    assert message.stage.elapsed_time.ToTimedelta().total_seconds() == 1.25


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([("b", 0, 0)], {"b": (1, 4096)}),
        ([("b", 5000, 0)], {"b": (5000, 5000)}),
        ([("b", 0, 7), ("a", 3, 3)], {"a": (3, 3), "b": (1, 7)}),
    ],
)
def test_bounds_take_defaults(bounds: list, expected: dict) -> None:
    messages = [engine_pb2.DimensionBounds(name=n, minimum=low, maximum=high) for n, low, high in bounds]
    assert convert.dimensions(messages) == expected


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ([("", 1, 2)], "has 0 characters"),
        ([("b", 3, 2)], "'b' from 3 to 2"),
        ([("b", 1, 2), ("b", 1, 2)], "comes twice"),
        ([("b", 1, 2**31)], "is no range"),
        ([(f"d{i}", 1, 2) for i in range(65)], "more than 64"),
    ],
)
def test_bounds_that_are_none(bounds: list, text: str) -> None:
    messages = [engine_pb2.DimensionBounds(name=n, minimum=low, maximum=high) for n, low, high in bounds]
    with pytest.raises(Invalid, match=text):
        convert.dimensions(messages)


@pytest.mark.parametrize(("type_", "bits"), [(DataType.INT4, 4), (DataType.UINT2, 2)])
def test_narrow_elements_leave_the_rest_of_their_byte_alone(type_: DataType, bits: int) -> None:
    message = engine_pb2.InferTensor(name="x", type=int(type_), shape=[2], data=b"\x01\x11")
    with pytest.raises(Invalid, match=f"{type_.name} has more than its lowest {bits} bits"):
        convert.arrays([message])


def test_strings_are_not_sent() -> None:
    with pytest.raises(Invalid, match=r"inputs\[0\].type: arrays of strings can't be sent"):
        convert.arrays([engine_pb2.InferTensor(name="x", type=int(DataType.STRING))])
    with pytest.raises(Invalid, match="output 'y': arrays of strings can't be sent"):
        convert.tensors([("y", np.array(["a"], np.object_))])


def test_files_of_a_models_data_are_named_by_their_path() -> None:
    blob = BlobRef.of(b"weights")
    request = engine_pb2.OptimizeRequest(
        model=BlobRef.of(b"m").to_proto(), external_data={"a/w.bin": blob.to_proto()}
    )
    assert convert.model_of(request) == Model(BlobRef.of(b"m"), {"a/w.bin": blob})


@pytest.mark.parametrize("path", ["../w", "/w", "a/../w", "a//w", "", "a\\w", "a\nw", "C:/w", "x" * 2000])
def test_files_of_a_models_data_stay_in_its_folder(path: str) -> None:
    request = engine_pb2.ExplainRequest(
        model=BlobRef.of(b"m").to_proto(), external_data={path: BlobRef.of(b"w").to_proto()}
    )
    with pytest.raises(Invalid, match=r"external_data: .* no file in the model's folder"):
        convert.subject(request)


def test_a_plan_has_no_files_beside_it() -> None:
    blob = BlobRef.of(b"p").to_proto()
    with pytest.raises(Invalid, match="a plan has its data in it"):
        convert.subject(engine_pb2.ExplainRequest(plan=blob, external_data={"w": blob}))


def test_something_to_explain_must_be_given() -> None:
    with pytest.raises(Invalid, match="give a model or a plan"):
        convert.subject(engine_pb2.ExplainRequest(parent="tenants/acme"))
