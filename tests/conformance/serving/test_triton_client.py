"""Triton's own client, in an environment of its own (it needs another protobuf), against a real server."""

import asyncio
import json
import os
import subprocess
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from onnx import TensorProto

from inference import open_inference_pb2
from libs.common.client import ServiceIdentity, create_channel
from libs.common.identity import IdentityIssuer
from services.deployer.testing import KEEPER_KEYS, running_deployer
from services.engine.testing_models import mlp
from services.serving.testing import Running, running_serving, user
from services.serving.testing_models import identity

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[2] / ".venv" / "tritonclient"
PACKAGES = ("tritonclient[grpc]==2.73.0", "numpy<3")
DESCRIBE = """
import sys
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
files = descriptor_pb2.FileDescriptorSet()
for module in (model_config_pb2, service_pb2):
    module.DESCRIPTOR.CopyToProto(files.file.add())
sys.stdout.buffer.write(files.SerializeToString())
"""


@pytest.fixture(scope="session")
def triton_python() -> Path:
    """An interpreter that has tritonclient; made once, beside the packages of this checkout."""
    python = ENVIRONMENT / "bin" / "python"
    probe = [str(python), "-c", "import tritonclient.grpc"]
    if not python.exists() or subprocess.run(probe, capture_output=True).returncode:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        installed = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *PACKAGES], capture_output=True, text=True
        )
        if installed.returncode:
            pytest.skip(f"tritonclient can't be installed here: {installed.stderr.strip()[-300:]}")
    return python


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_deployer(tmp_path / "deployer") as deployer:
        issuer = IdentityIssuer("serving", KEEPER_KEYS["serving"], deployer.clock)
        says = ServiceIdentity(issuer, "deployer")
        async with (
            create_channel(deployer.channel.target, identity=says) as channel,
            running_serving(tmp_path / "serving", channel) as running,
        ):
            client = running.client()
            for name, content in {"mlp": mlp(), "text": identity(TensorProto.STRING, ("batch",))}.items():
                await client.put(name)
                await client.create(name, "v1", await deployer.client().upload(content))
            yield running


@pytest.mark.timeout(600)
async def test_tritons_client_is_served(triton_python: Path, serving: Running) -> None:
    token = serving.channel.issuer.mint(user("acme"), "serving")
    process = await asyncio.create_subprocess_exec(
        str(triton_python),
        str(HERE / "triton_client.py"),
        serving.channel.target,
        token,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    async with asyncio.timeout(120):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found = json.loads(output)
    assert (found["live"], found["ready"], found["model_ready"]) == (True, True, True)
    assert found["server"]["name"] == "isthmus-serving"
    assert found["metadata"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "8"]}]
    assert found["config"]["max_batch_size"] == 64
    assert found["sums"] == pytest.approx([1.0, 1.0, 1.0], abs=1e-5)
    assert (found["id"], found["version"]) == ("7", "v1")
    assert found["words"] == ["one", "", "drei"]
    assert found["refusal"] == [
        "StatusCode.INVALID_ARGUMENT",
        "input 'x': has the shape [1, 9]; it must be [batch, 8]",
    ]
    assert (found["unloaded"], found["loaded"]) == (False, True)
    assert {(each["name"], each["state"]) for each in found["index"]} == {("mlp", "READY"), ("text", "READY")}
    assert found["async_errors"] == []
    (stats,) = found["statistics"]
    assert int(stats["inference_stats"]["success"]["count"]) == 18
    assert int(stats["inference_count"]) == 54


def test_every_field_has_the_number_that_triton_gives_it(triton_python: Path) -> None:
    done = subprocess.run([str(triton_python), "-c", DESCRIBE], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    theirs: dict[str, object] = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(done.stdout).file:
        theirs.update(_numbers(file))
    ours_file = descriptor_pb2.FileDescriptorProto()
    open_inference_pb2.DESCRIPTOR.CopyToProto(ours_file)
    ours = _numbers(ours_file)
    assert len(ours) > 150
    assert {name: theirs.get(name) for name in ours} == ours


def _numbers(file: descriptor_pb2.FileDescriptorProto) -> dict[str, object]:
    """Return number, type and label of each field, number of each enum value, types of each RPC, by name."""
    found: dict[str, object] = {}

    def add_enum(prefix: str, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        found.update({f"{prefix}{enum.name}.{value.name}": value.number for value in enum.value})

    def add(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        place = f"{prefix}{message.name}."
        for field in message.field:
            found[place + field.name] = (field.number, field.type, field.label, field.type_name)
        for nested in message.nested_type:
            add(place, nested)
        for enum in message.enum_type:
            add_enum(place, enum)

    for message in file.message_type:
        add("", message)
    for enum in file.enum_type:
        add_enum("", enum)
    for service in file.service:
        for method in service.method:
            found[f"{service.name}/{method.name}"] = (method.input_type, method.output_type)
    return found
