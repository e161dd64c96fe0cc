"""The stub build: whole or not at all, and nothing when nothing changed."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROTO = """syntax = "proto3";
package isthmus.sample.v1;
message Sample { string %s = 1; }
service SampleService { rpc GetSample(Sample) returns (Sample); }
"""


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("stub_build", ROOT / "libs" / "protos" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PROTOS", tmp_path / "protos")
    write(tmp_path, PROTO % "name")
    return module


def write(folder: Path, text: str) -> None:
    path = folder / "protos" / "isthmus" / "sample" / "v1" / "sample.proto"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_stubs_and_type_stubs_are_generated(builder: ModuleType, tmp_path: Path) -> None:
    assert builder.build(tmp_path / "out") is True
    folder = tmp_path / "out" / "isthmus" / "sample" / "v1"
    assert {path.name for path in folder.iterdir()} == {
        "sample_pb2.py",
        "sample_pb2.pyi",
        "sample_pb2_grpc.py",
        "sample_pb2_grpc.pyi",
    }
    assert list((tmp_path / "out").rglob("__init__.py")) == []


def test_nothing_is_done_twice(builder: ModuleType, tmp_path: Path) -> None:
    builder.build(tmp_path / "out")
    assert builder.build(tmp_path / "out") is False


def test_a_changed_proto_is_generated_again(builder: ModuleType, tmp_path: Path) -> None:
    builder.build(tmp_path / "out")
    write(tmp_path, PROTO % "title")
    assert builder.build(tmp_path / "out") is True
    assert "title" in (tmp_path / "out" / "isthmus" / "sample" / "v1" / "sample_pb2.pyi").read_text()


def test_a_proto_that_is_gone_takes_its_stubs_along(builder: ModuleType, tmp_path: Path) -> None:
    builder.build(tmp_path / "out")
    old = tmp_path / "protos" / "isthmus" / "sample"
    old.rename(old.parent / "other")
    builder.build(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "isthmus").iterdir() if path.is_dir()] == ["other"]


def test_a_broken_proto_leaves_the_stubs_as_they_were(
    builder: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    builder.build(tmp_path / "out")
    write(tmp_path, "message {")
    with pytest.raises(SystemExit, match="protoc failed"):
        builder.build(tmp_path / "out")
    assert "sample.proto:1:9" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["isthmus"]
    assert (tmp_path / "out" / "isthmus" / "sample" / "v1" / "sample_pb2.py").exists()


def test_the_open_inference_protocol_has_stubs_of_its_own(builder: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "protos" / "inference" / "sample.proto"
    path.parent.mkdir()
    path.write_text('syntax = "proto3";\npackage inference;\nmessage Sample {}\n')
    assert builder.build_inference(tmp_path / "out") is True
    assert builder.build_inference(tmp_path / "out") is False
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["inference"]
    assert (tmp_path / "out" / "inference" / "sample_pb2.py").exists()


def test_etcds_stubs_are_made_of_the_descriptors_of_etcd3(builder: ModuleType, tmp_path: Path) -> None:
    assert builder.build_etcd(tmp_path) is True
    assert {path.name for path in (tmp_path / "etcd_stubs").glob("*.py")} == {
        "__init__.py",
        *(f"{name}_pb2{kind}.py" for name in ("kv", "auth", "rpc") for kind in ("", "_grpc")),
    }
    stubs = (tmp_path / "etcd_stubs" / "rpc_pb2_grpc.pyi").read_text()
    for service in ("KV", "Watch", "Lease"):
        assert f"class {service}Stub" in stubs
    assert builder.build_etcd(tmp_path) is False
    assert [path.name for path in tmp_path.iterdir() if path.name != "protos"] == ["etcd_stubs"]


def test_etcds_watch_has_the_fields_of_etcd_34(builder: ModuleType) -> None:
    rpc = next(file for file in builder.etcd_descriptors().file if file.name == "etcd_stubs/rpc.proto")
    numbers = {
        f"{message.name}.{field.name}": field.number
        for message in rpc.message_type
        for field in message.field
    }
    assert numbers["WatchCreateRequest.fragment"] == 8
    assert numbers["WatchResponse.fragment"] == 7
    assert numbers["WatchResponse.events"] == 11
    assert len(set(numbers)) == sum(len(message.field) for message in rpc.message_type)
