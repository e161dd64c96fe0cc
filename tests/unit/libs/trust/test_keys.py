import hashlib
import stat

import pytest

from libs.common.errors import Invalid, Precondition
from libs.trust.keys import SigningKey, key_id, public_from_raw, raw_public
from libs.trust.testing import fake_key


def test_a_key_id_is_half_the_digest_of_the_raw_key():
    key = fake_key("a")
    raw = raw_public(key.public)
    assert key.key_id == key_id(key.public) == key_id(raw) == hashlib.sha256(raw).hexdigest()[:32]
    assert raw_public(public_from_raw(raw)) == raw


def test_a_key_file_is_private_and_stays_the_same(tmp_path):
    path = tmp_path / "keys" / "author.key"
    key = SigningKey.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load(path).key_id == SigningKey.load_or_create(path).key_id == key.key_id
    path.chmod(0o644)
    with pytest.raises(Precondition):
        SigningKey.load(path)


def test_nothing_private_is_shown():
    assert repr(fake_key("a")) == f"SigningKey(key_id='{fake_key('a').key_id}')"


@pytest.mark.parametrize("raw", [b"", bytes(31), bytes(33)])
def test_a_public_key_has_32_bytes(raw):
    with pytest.raises(Invalid, match="root key must have 32 bytes"):
        public_from_raw(raw, "root key")
