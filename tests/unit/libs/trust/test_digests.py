import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.testing import attempt
from libs.trust.digests import DigestingWriter, check_content, parse_digest, sha256_of
from libs.trust.errors import Untrusted


def test_bytes_paths_and_open_files_have_one_digest(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of(b"abc") == sha256_of(path) == sha256_of(io.BytesIO(b"abc")) == expected
    assert parse_digest(expected) == hashlib.sha256(b"abc").digest()
    check_content(path, expected, "file f")


@given(st.text() | st.from_regex(r"sha256:[0-9a-fA-F]{63,65}"))
def test_other_digests_are_invalid(text):
    raw, error = attempt(parse_digest, text, "blob.digest")
    if error is not None:
        assert error.message.startswith("blob.digest: ")
    else:
        assert text == f"sha256:{raw.hex()}"


def test_a_digest_is_lower_case_and_whole():
    good = sha256_of(b"")
    for bad in (good.upper(), good[:-1], good + "\n", good[7:], f" {good}", good.replace("sha256", "md5")):
        with pytest.raises(Invalid):
            parse_digest(bad)


class Trickle(io.RawIOBase):
    """Takes at most three bytes at once, as a raw file may."""

    def __init__(self):
        self.taken = b""

    def writable(self):
        return True

    def write(self, data):
        self.taken += bytes(data[:3])
        return len(data[:3])


@given(st.lists(st.binary(max_size=10), max_size=6))
def test_a_writer_measures_what_passes(chunks):
    with Trickle() as file:
        writer = DigestingWriter(file)
        for chunk in chunks:
            writer.write(chunk)
        content = b"".join(chunks)
        assert file.taken == content
        assert (writer.digest, writer.size_bytes) == (sha256_of(content), len(content))
        writer.check(sha256_of(content), len(content))


def test_a_writer_refuses_what_does_not_match():
    file = io.BytesIO()
    writer = DigestingWriter(file, max_bytes=5)
    writer.write(b"abc")
    with pytest.raises(Untrusted, match="longer than the 5 bytes") as caught:
        writer.write(b"def")
    assert caught.value.reason == "DIGEST_MISMATCH"
    assert file.getvalue() == b"abc"
    with pytest.raises(Untrusted, match=r"pre\.py: has 3 bytes, expected 4"):
        writer.check(sha256_of(b"abc"), 4, "pre.py")
    with pytest.raises(Untrusted, match=r"pre\.py: digest is sha256:ba78.*, expected sha256:"):
        writer.check(sha256_of(b"abd"), 3, "pre.py")
    with pytest.raises(Untrusted, match="file x: digest is"):
        check_content(b"abc", sha256_of(b"abd"), "file x")
