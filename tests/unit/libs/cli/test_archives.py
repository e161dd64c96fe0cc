"""numpy's archives: what numpy writes is read as it is, and all else is refused by its name."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inference import open_inference_pb2 as pb
from isthmus.engine.v1 import engine_pb2, plan_pb2
from libs.cli.archives import read_archive
from libs.cli.inference import infer_request
from libs.cli.tensors import read_inputs, tensors_from_json
from libs.common.errors import Invalid, NotFound

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives") / "x.npz"


def npz(path: Path, **found: np.ndarray) -> Path:
    np.savez(path, **found)
    return path


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from("<>"), st.sampled_from("CF"), st.booleans())
def test_what_numpy_saved_is_read_as_it_is(
    scratch: Path, data: st.DataObject, dtype: str, byteorder: str, order: str, pack: bool
) -> None:
    shape = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    plain = data.draw(arrays.arrays(np.dtype(dtype), shape))
    saved = np.asarray(plain.astype(plain.dtype.newbyteorder(byteorder)), order=order)
    (np.savez_compressed if pack else np.savez)(scratch, x=saved)
    found = read_archive(scratch, "--inputs")["x"]
    assert (found.shape, found.type_name) == (plain.shape, plain.dtype.name)
    assert found.data == plain.astype(plain.dtype.newbyteorder("<")).tobytes()


def test_an_image_goes_into_a_request(tmp_path: Path) -> None:
    image = np.linspace(0, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    values = read_inputs(f"@{npz(tmp_path / 'image.npz', x=image)}")
    (sent,) = tensors_from_json([engine_pb2.TensorSpec(name="x", type=plan_pb2.DATA_TYPE_FLOAT32)], values)
    assert (list(sent.shape), sent.data) == ([1, 3, 224, 224], image.tobytes())
    request = infer_request(
        "m", "", [pb.ModelMetadataResponse.TensorMetadata(name="x", datatype="FP32")], values
    )
    assert request.raw_input_contents[0] == image.tobytes()


def test_an_image_as_json_is_taken_too(tmp_path: Path) -> None:
    image = np.random.default_rng(0).random((1, 3, 224, 224))
    path = tmp_path / "image.json"
    path.write_text(f'{{"x": {image.tolist()}}}')
    assert path.stat().st_size > 2_000_000
    assert np.shape(read_inputs(f"@{path}")["x"]) == image.shape  # type: ignore[index]


def test_json_that_is_too_long_is_told_the_way_round(tmp_path: Path) -> None:
    path = tmp_path / "image.json"
    with path.open("wb") as file:
        file.truncate(32 * 1024 * 1024 + 1)
    with pytest.raises(Invalid, match=r"is longer than 32.* MiB; numpy's archives .* --inputs @inputs\.npz"):
        read_inputs(f"@{path}")


def test_an_array_of_another_type_is_told_how_to_convert(tmp_path: Path) -> None:
    values = read_inputs(f"@{npz(tmp_path / 'x.npz', x=np.zeros(2), y=np.zeros(2))}")
    spec = engine_pb2.TensorSpec(name="x", type=plan_pb2.DATA_TYPE_FLOAT32)
    with pytest.raises(Invalid, match="inputs: 'y' is unknown; there are x"):
        tensors_from_json([spec], values)
    del values["y"]  # type: ignore[attr-defined]
    with pytest.raises(Invalid, match=r"of float64, and float32 is taken; save x\.astype\('float32'\)"):
        tensors_from_json([spec], values)
    with pytest.raises(Invalid, match="of float64, and BYTES takes texts; write them as JSON"):
        infer_request("m", "", [pb.ModelMetadataResponse.TensorMetadata(name="x", datatype="BYTES")], values)
    deep = read_inputs(f"@{npz(tmp_path / 'x.npz', x=np.zeros([1] * 9, np.float32))}")
    with pytest.raises(Invalid, match="input 'x': has more than 8 dimensions"):
        tensors_from_json([spec], deep)


def zipped(path: Path, content: bytes, *, name: str = "x.npy", method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, content)
    return path


def array_bytes(descr: str = "<f4", shape: str = "(2,)", data: bytes = bytes(8)) -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (array_bytes("|O"), "array 'x': holds Python objects; only booleans and plain numbers are read"),
        (array_bytes("<U4"), "array 'x': holds texts"),
        (array_bytes("<c8"), "array 'x': holds complex numbers"),
        (array_bytes("|V2"), r"array 'x': holds elements of type '\|V2'"),
        (array_bytes(data=bytes(7)), "has fewer bytes than its shape takes"),
        (array_bytes(data=bytes(9)), "has more bytes than its shape takes"),
        (array_bytes(shape="(2**62, 8)"), "its header can't be read"),
        (array_bytes(shape="(4611686018427387904, 8)"), r"takes more than 64.* MiB, .* send fewer rows"),
        (array_bytes(shape="(-1,)"), "its shape can't be read"),
        (array_bytes(shape="[2]"), "its shape can't be read"),
        (array_bytes(shape="__import__('os')"), "its header can't be read"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4294967295 bytes"),
        (b"\x93NUMPY\x01\x00", "its header has 0 bytes"),
        (b"junk", "is no array of numpy"),
    ],
)
def test_what_is_no_array_of_numbers_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    path = zipped(tmp_path / "x.npz", content)
    with pytest.raises(Invalid, match=said) as caught:
        read_archive(path, "--inputs")
    assert caught.value.message.startswith(f"--inputs {path}: ")


def test_a_small_archive_of_much_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(20 << 20, np.uint8), y=np.zeros(45 << 20, np.uint8))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(Invalid, match="array 'y': takes more than 64"):
        read_archive(path, "--inputs")


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for content in (b"", b"text", npz(path, x=np.zeros(9)).read_bytes()[:100]):
        path.write_bytes(content)
        with pytest.raises(Invalid, match="is no archive of numpy"):
            read_inputs(f"@{path}")
    with io.BytesIO() as file:
        np.save(file, np.zeros(2))
        (tmp_path / "x.npy").write_bytes(file.getvalue())
    with pytest.raises(Invalid, match=r"is one array without a name; write numpy\.savez"):
        read_inputs(f"@{tmp_path / 'x.npy'}")
    with pytest.raises(NotFound, match=r"gone\.npz"):
        read_inputs(f"@{tmp_path / 'gone.npz'}")
    with pytest.raises(Invalid, match="packed as numpy doesn't"):
        read_archive(zipped(path, array_bytes(), method=zipfile.ZIP_BZIP2), "--inputs")
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1025):
            archive.writestr(f"{number}.npy", b"")
    with pytest.raises(Invalid, match="has 1025 arrays; at most 1024 are read"):
        read_archive(path, "--inputs")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", array_bytes())
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", array_bytes())
    with pytest.raises(Invalid, match="array 'x' is there twice"):
        read_archive(path, "--inputs")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_archives_do_no_harm(scratch: Path, changes: list[tuple[int, int]]) -> None:
    with io.BytesIO() as file:
        np.savez(file, x=np.arange(6.0).reshape(2, 3), y=np.zeros(3, bool))
        data = bytearray(file.getvalue())
    for place, byte in changes:
        data[place % len(data)] = byte
    scratch.write_bytes(data)
    said = f"--inputs {scratch}: "
    try:
        read_archive(scratch, "--inputs")
    except Invalid as error:
        said = error.message
    assert said.startswith(f"--inputs {scratch}: ")
