from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from libs.common.errors import Invalid, Precondition
from libs.runtime.codec import encode
from libs.runtime.plan import (
    Action,
    Block,
    Composition,
    DataType,
    Host,
    NamedRegister,
    Plan,
    Register,
    RegisterType,
    SequenceType,
    TensorType,
)
from libs.runtime.testing import DIGEST, linear_plan
from services.serving.backends.loader import BackendLoader
from services.serving.backends.onnx_runtime import _first_sentence
from services.serving.domain.backend import warm
from services.serving.domain.model import Platform, ServingConfig
from services.serving.testing import FakeBackend
from services.serving.testing_models import lookup, model, scale

LOADER = BackendLoader(2**30)


def load(tmp_path: Path, content: bytes, platform: Platform = Platform.ONNX, **config: int):
    path = tmp_path / "model"
    path.write_bytes(content)
    return LOADER.load(path, platform, ServingConfig(**config))


@pytest.mark.parametrize("threads", [1, 2])
def test_onnx_runtime_computes(tmp_path: Path, threads: int) -> None:
    backend = load(tmp_path, scale(3.0), instance_count=2, intra_op_thread_count=threads)
    assert warm(backend) > 4096
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(backend.run({"x": x})["y"], x * 3)


def test_a_fault_of_values_is_the_callers(tmp_path: Path) -> None:
    backend = load(tmp_path, lookup())
    with pytest.raises(Invalid, match="indices"):
        backend.run({"i": np.array([99])})


def test_a_model_that_names_other_files_is_refused(tmp_path: Path) -> None:
    made = onnx.ModelProto.FromString(scale(3.0))
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="other-file")
    with pytest.raises(Invalid, match="is in another file") as caught:
        load(tmp_path, made.SerializeToString())
    assert caught.value.reason == "EXTERNAL_DATA"


def test_a_model_of_something_else_than_tensors_is_refused_by_name(tmp_path: Path) -> None:
    shape = ("n",)
    content = model(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (TensorProto.BFLOAT16, shape)},
        {"y": (TensorProto.BFLOAT16, shape)},
    )
    with pytest.raises(Invalid, match="'x' is a tensor\\(bfloat16\\)"):
        load(tmp_path, content)


def test_what_cant_be_loaded_tells_no_path(tmp_path: Path) -> None:
    content = model(
        [helper.make_node("NoSuchOperator", ["x"], ["y"])],
        {"x": (TensorProto.FLOAT, ("n",))},
        {"y": (TensorProto.FLOAT, ("n",))},
    )
    with pytest.raises(Invalid, match="NoSuchOperator") as caught:
        load(tmp_path, content)
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "blob: it is empty; export the model again"),
        (scale(3.0)[:-3], "blob: it is no ONNX model, or it is damaged or cut off; export it again"),
        (b"no model at all", "blob: it is no ONNX model, or it is damaged"),
        (
            encode(linear_plan([2.0], 1.0)),
            "blob: it is a plan of the engine, not an ONNX model; deploy it as a",
        ),
    ],
)
def test_what_is_no_onnx_model_is_told_with_a_remedy(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(tmp_path, content)
    assert caught.value.message.startswith(said)


def test_onnx_runtime_is_cut_to_what_it_says(tmp_path: Path) -> None:
    backend = load(tmp_path, lookup())
    with pytest.raises(Invalid) as caught:
        backend.run({"i": np.array([99])})
    assert caught.value.message == (
        "model: indices element out of data bounds, idx=99 must be within the inclusive range [-8,7]"
    )
    long = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : /src/core/a.cc:12 virtual void f::g(int, A::B*) const "
    )
    assert _first_sentence(f"{long}It is wrong. Here is more.") == "It is wrong"
    assert _first_sentence("[ONNXRuntimeError] : 1 : FAIL : v1.2 isn't known") == "v1.2 isn't known"


def _held(type_: RegisterType, *actions: Action, output: int = 0, more: Sequence[Register] = ()) -> bytes:
    composition = Composition(
        (),
        (Register(type_), *more),
        (NamedRegister("x", 0),),
        (NamedRegister("y", output),),
        (Block((), actions, ()),),
    )
    return encode(Plan(DIGEST, "a test", composition=composition))


def test_a_plan_of_strings_takes_and_gives_bytes(tmp_path: Path) -> None:
    words = TensorType(DataType.STRING, (None,))
    upper = Action(Host("string_case", (0,), (1,), (1,)))
    backend = load(tmp_path, _held(words, upper, output=1, more=[Register(words)]), Platform.PLAN)
    warm(backend)
    assert backend.signature.inputs[0].datatype == "BYTES"
    given = np.array(["aü".encode(), b""], np.object_)
    assert backend.run({"x": given})["y"].tolist() == ["AÜ".encode(), b""]
    with pytest.raises(Invalid, match="isn't UTF-8") as caught:
        backend.run({"x": np.array([b"\xff"], np.object_)})
    assert caught.value.reason == "BAD_INPUT"


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        (SequenceType(TensorType(DataType.FLOAT32, (None,))), r"x: sequence of float32\[\?\] isn't served"),
        (TensorType(DataType.FLOAT32), r"x: float32\[\.\.\.\] isn't served"),
        (TensorType(DataType.BFLOAT16, (2,)), r"x: bfloat16\[2\] isn't served"),
    ],
)
def test_a_plan_of_something_else_than_tensors_is_refused_by_name(
    tmp_path: Path, type_: RegisterType, said: str
) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        load(tmp_path, _held(type_), Platform.PLAN)
    assert caught.value.reason == "UNSUPPORTED_TYPE"


def test_a_plan_computes(tmp_path: Path) -> None:
    backend = load(tmp_path, encode(linear_plan([2.0, 3.0], 1.0)), Platform.PLAN)
    assert backend.signature.rows == "batch"
    assert warm(backend) == 4096
    x = np.array([[1, 1], [0, 2]], np.float32)
    expected = 1 / (1 + np.exp(-(x @ np.array([2.0, 3.0]) + 1)))
    np.testing.assert_allclose(backend.run({"x": x})["probability"], expected, rtol=1e-5)


def test_plans_are_refused_when_they_are_none(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="blob: "):
        load(tmp_path, b"junk", Platform.PLAN)


def test_a_model_that_gives_no_row_for_each_isnt_batched() -> None:
    assert warm(FakeBackend(function=lambda x: x[:1])) == 1
    assert warm(FakeBackend(sizes={"batch": (1, 16)})) == 16
    assert warm(FakeBackend()) == 2**31


def test_a_model_that_fails_on_zeros_is_refused() -> None:
    def fails(x):
        raise Invalid("never")

    with pytest.raises(Precondition, match="fails on zeros: never"):
        warm(FakeBackend(function=fails))
