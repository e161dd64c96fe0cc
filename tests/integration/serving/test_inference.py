"""Inference over real gRPC, ONNX Runtime and a real deployer."""

import asyncio

import grpc
import numpy as np
import pytest
from onnx import TensorProto

from inference import open_inference_pb2 as oip
from isthmus.serving.v1 import model_pb2
from libs.runtime.codec import encode
from libs.runtime.testing import linear_plan
from services.deployer.testing import Running as Deployer
from services.engine.testing_models import mlp
from services.serving.testing import Client, Running, infer_request
from services.serving.testing_models import identity, lookup, scale

MIB = 1024 * 1024


async def served(
    serving: Running, deployer: Deployer, content: bytes, config: model_pb2.ServingConfig | None = None
) -> Client:
    """Serve a file as model "m", version "v1"."""
    blob = await deployer.client().upload(content)
    client = serving.client()
    await client.put("m", config)
    version = await client.create("m", "v1", blob)
    assert version.state == model_pb2.ModelVersion.STATE_READY
    return client


async def refused(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_a_model_answers_with_its_own_rows(serving: Running, deployer: Deployer) -> None:
    client = await served(serving, deployer, scale(3.0))
    rows = [np.full((1 + index % 3, 4), index, np.float32) for index in range(64)]
    answers = await asyncio.gather(*(client.infer("m", x=x) for x in rows))
    for x, answer in zip(rows, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], x * 3)
    stats = (await client.oip.ModelStatistics(oip.ModelStatisticsRequest(name="m"))).model_stats[0]
    assert (stats.name, stats.version) == ("m", "v1")
    assert stats.inference_count == sum(len(x) for x in rows)
    assert stats.inference_stats.success.count == 64
    assert stats.inference_stats.queue.count == 64
    assert stats.inference_stats.fail.count == 0
    assert stats.execution_count == sum(each.compute_infer.count for each in stats.batch_stats) <= 64
    assert (
        sum(each.batch_size * each.compute_infer.count for each in stats.batch_stats) == stats.inference_count
    )
    assert stats.last_inference > 0
    labels = {"tenant": "acme", "model": "m", "version": "v1"}
    assert (
        serving.metrics.get_sample_value("isthmus_serving_requests_total", {**labels, "outcome": "success"})
        == 64
    )
    assert serving.metrics.get_sample_value("isthmus_serving_rows_total", labels) == stats.inference_count
    assert serving.metrics.get_sample_value("isthmus_serving_request_seconds_count", labels) == 64


async def test_what_a_model_is_can_be_asked(serving: Running, deployer: Deployer) -> None:
    client = await served(serving, deployer, mlp(), model_pb2.ServingConfig(max_batch_rows=16))
    assert (await client.oip.ServerLive(oip.ServerLiveRequest())).live
    assert (await client.oip.ServerReady(oip.ServerReadyRequest())).ready
    assert (await client.oip.ModelReady(oip.ModelReadyRequest(name="m"))).ready
    assert not (await client.oip.ModelReady(oip.ModelReadyRequest(name="m", version="v9"))).ready
    assert not (await client.oip.ModelReady(oip.ModelReadyRequest(name="other"))).ready
    assert not (await serving.client("rival").oip.ModelReady(oip.ModelReadyRequest(name="m"))).ready
    metadata = await client.oip.ModelMetadata(oip.ModelMetadataRequest(name="m"))
    assert (metadata.platform, list(metadata.versions)) == ("onnxruntime_onnx", ["v1"])
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
        ("x", "FP32", [-1, 8])
    ]
    config = (await client.oip.ModelConfig(oip.ModelConfigRequest(name="m"))).config
    assert config.max_batch_size == 16
    assert list(config.input[0].dims) == [8]
    assert config.HasField("dynamic_batching")
    index = (await client.oip.RepositoryIndex(oip.RepositoryIndexRequest())).models
    assert [(each.name, each.version, each.state) for each in index] == [("m", "v1", "READY")]
    assert (await serving.client("rival").oip.RepositoryIndex(oip.RepositoryIndexRequest())).models == []


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (TensorProto.BOOL, "?"),
        (TensorProto.INT8, "i1"),
        (TensorProto.INT16, "<i2"),
        (TensorProto.INT32, "<i4"),
        (TensorProto.INT64, "<i8"),
        (TensorProto.UINT8, "u1"),
        (TensorProto.UINT16, "<u2"),
        (TensorProto.UINT32, "<u4"),
        (TensorProto.UINT64, "<u8"),
        (TensorProto.FLOAT16, "<f2"),
        (TensorProto.FLOAT, "<f4"),
        (TensorProto.DOUBLE, "<f8"),
    ],
)
async def test_every_datatype_goes_through_raw_and_typed(
    element: int, dtype: str, serving: Running, deployer: Deployer
) -> None:
    client = await served(serving, deployer, identity(element))
    x = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    answer = await client.infer("m", x=x)
    assert answer["y"].dtype == x.dtype
    np.testing.assert_array_equal(answer["y"], x)
    if dtype == "<f2":
        return
    request = infer_request("m", {"x": x})
    request.ClearField("raw_input_contents")
    field = {"?": "bool", "i": "int", "u": "uint", "f": "fp"}[dtype if dtype == "?" else dtype[-2]]
    if field == "fp" or dtype[-1] == "8":
        field += {"4": "32", "8": "64"}[dtype[-1]]
    getattr(request.inputs[0].contents, f"{field}_contents").extend(x.ravel().tolist())
    response = await client.oip.ModelInfer(request)
    assert not response.raw_output_contents
    assert list(getattr(response.outputs[0].contents, f"{field}_contents")) == x.ravel().tolist()


async def test_a_model_without_batching_takes_any_rows_as_one(serving: Running, deployer: Deployer) -> None:
    client = await served(serving, deployer, scale(3.0), model_pb2.ServingConfig(max_batch_rows=1))
    for rows in (1, 2, 300):
        x = np.ones((rows, 4), np.float32)
        np.testing.assert_array_equal((await client.infer("m", x=x))["y"], x * 3)
    stats = (await client.oip.ModelStatistics(oip.ModelStatisticsRequest(name="m"))).model_stats[0]
    # As for any model whose max_batch_size is 0; a count for each number of rows would have no bound.
    assert (stats.inference_count, [each.batch_size for each in stats.batch_stats]) == (3, [1])


async def test_a_plan_of_the_engine_answers(serving: Running, deployer: Deployer) -> None:
    client = serving.client()
    await client.put("m")
    blob = await deployer.client().upload(encode(linear_plan([2.0, 3.0], 1.0)))
    await client.create("m", "v1", blob, model_pb2.ModelVersion.PLATFORM_PLAN)
    rows = [np.full((1 + index % 2, 2), index / 8, np.float32) for index in range(16)]
    answers = await asyncio.gather(*(client.infer("m", x=x) for x in rows))
    for x, answer in zip(rows, answers, strict=True):
        expected = 1 / (1 + np.exp(-(x @ np.array([2.0, 3.0]) + 1)))
        np.testing.assert_allclose(answer["probability"], expected, rtol=1e-5)
    config = (await client.oip.ModelConfig(oip.ModelConfigRequest(name="m"))).config
    assert (config.platform, config.max_batch_size) == ("isthmus_plan", 64)


async def test_strings_go_through_as_bytes(serving: Running, deployer: Deployer) -> None:
    client = await served(serving, deployer, identity(TensorProto.STRING, ("batch",)))
    request = oip.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend([b"", "é".encode()])
    response = await client.oip.ModelInfer(request)
    assert list(response.outputs[0].contents.bytes_contents) == [b"", "é".encode()]
    tensor.contents.bytes_contents[0] = b"\xff"
    code, text = await refused(client.oip.ModelInfer(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in text


async def test_bytes_are_refused_by_name_where_the_model_takes_numbers(
    serving: Running, deployer: Deployer
) -> None:
    client = await served(serving, deployer, scale(1.0))
    request = oip.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[1, 4])
    tensor.contents.bytes_contents.extend([b"a"] * 4)
    code, text = await refused(client.oip.ModelInfer(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == "input 'x': has the datatype BYTES; it must be FP32"


async def test_a_tensor_of_100_mib_goes_in_and_out(serving: Running, deployer: Deployer) -> None:
    await served(serving, deployer, identity(TensorProto.FLOAT))
    x = np.arange(100 * MIB // 4, dtype=np.float32).reshape(1, -1)
    # A channel of its own: the usual one takes 4 MiB.
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(serving.channel.target, options=options) as channel:
        token = serving.channel.issuer.mint(_user(), "serving")
        stub = Client(channel, "acme").oip
        request = infer_request("m", {"x": x})
        response = await stub.ModelInfer(request, metadata=(("x-isthmus-identity", token),), timeout=60)
    assert response.raw_output_contents[0] == request.raw_input_contents[0]


def _user():
    from services.serving.testing import user

    return user("acme")


BAD = [
    (lambda r: r.inputs[0].ClearField("name"), "isn't an input of this model"),
    (lambda r: r.inputs.append(r.inputs[0]), "2 inputs"),
    (lambda r: r.ClearField("inputs"), "1 for 0 inputs"),
    (lambda r: setattr(r.inputs[0], "datatype", "FP23"), "did you mean 'FP32'"),
    (lambda r: setattr(r.inputs[0], "datatype", "FP64"), "raw bytes"),
    (lambda r: setattr(r.inputs[0], "datatype", "INT32"), "must be FP32"),
    (lambda r: r.inputs[0].shape.__setitem__(1, 5), "5 elements"),
    (lambda r: r.inputs[0].shape.__setitem__(0, -1), "isn't one"),
    (lambda r: r.inputs[0].shape.append(1), "must be [batch, 4]"),
    (lambda r: r.inputs[0].contents.fp32_contents.append(1), "give one of them"),
    (lambda r: r.raw_input_contents.append(b""), "2 for 1 inputs"),
    (lambda r: r.outputs.add(name="z"), "isn't an output"),
    (lambda r: setattr(r, "model_name", "No Such"), "is not an id"),
    (lambda r: setattr(r, "model_version", "a/b"), "is not a version"),
    (lambda r: r.parameters["timeout"].__setattr__("string_param", "soon"), "microseconds"),
    (lambda r: r.parameters["sequence_id"].__setattr__("int64_param", 3), "sequence_id isn't supported"),
    (
        lambda r: r.inputs[0].parameters["shared_memory_region"].__setattr__("string_param", "r"),
        "inputs: 'x': shared_memory_region isn't supported",
    ),
    (
        lambda r: r.outputs.add(name="y").parameters["classification"].__setattr__("int64_param", 3),
        "outputs: 'y': classification isn't supported",
    ),
]


async def test_bad_input_is_the_callers_fault_and_harms_nobody(serving: Running, deployer: Deployer) -> None:
    client = await served(serving, deployer, scale(2.0))
    good = np.ones((1, 4), np.float32)
    for spoil, told in BAD:
        request = infer_request("m", {"x": good})
        spoil(request)
        mixed = [client.infer("m", x=good) for _ in range(3)]
        (code, text), *answers = await asyncio.gather(refused(client.oip.ModelInfer(request)), *mixed)
        assert code is grpc.StatusCode.INVALID_ARGUMENT, text
        assert told in text
        for answer in answers:
            np.testing.assert_array_equal(answer["y"], good * 2)


async def test_a_value_that_fails_the_batch_fails_its_own_request_alone(
    serving: Running, deployer: Deployer
) -> None:
    config = model_pb2.ServingConfig(max_batch_rows=8)
    config.max_batch_delay.FromSeconds(10)
    client = await served(serving, deployer, lookup(), config)
    # Eight rows fill the batch, so that they run together without a wait.
    indices = [0, 1, 99, 3, 4, 5, 6, 7]
    calls = [client.infer("m", i=np.array([index])) for index in indices]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for index, result in zip(indices, results, strict=True):
        if index == 99:
            assert isinstance(result, grpc.aio.AioRpcError)
            assert result.code() is grpc.StatusCode.INVALID_ARGUMENT
        else:
            assert result["y"].tolist() == [[index * 2, index * 2 + 1]]


async def test_who_may_not_is_refused(serving: Running, deployer: Deployer) -> None:
    client = await served(serving, deployer, scale(1.0))
    x = np.ones((1, 4), np.float32)
    code, _ = await refused(serving.client("rival").infer("m", x=x))
    assert code is grpc.StatusCode.NOT_FOUND
    code, _ = await refused(serving.client("acme", "tasks:read").infer("m", x=x))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    code, _ = await refused(serving.client("acme", "models:read").put("m"))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    request = model_pb2.GetModelRequest(name="tenants/acme/models/m")
    code, _ = await refused(serving.client("rival").models.GetModel(request))
    assert code is grpc.StatusCode.NOT_FOUND
    assert (await client.get("m")).live_version == "v1"
