"""What an upload's headers declare."""

import base64
import hashlib

import pytest

from api.uploads import declared_sha256
from models.errors import InvalidError

SHA = hashlib.sha256(b"x")
TEXT = base64.b64encode(SHA.digest()).decode()


@pytest.mark.parametrize(
    "header", [f"sha-256=:{TEXT}:", f"SHA-256=:{TEXT}:", f"md5=:AAAA:, sha-256=:{TEXT}:", f" sha-256 = :{TEXT}: "]
)
def test_a_digest_is_read(header):
    assert declared_sha256(header) == SHA.hexdigest()


def test_no_header_declares_nothing():
    assert declared_sha256(None) is None


@pytest.mark.parametrize(
    "header", ["", "sha-256", f"sha-256={TEXT}", "sha-256=:AAAA:", "sha-256=::", "sha-512=:AAAA:", "sha-256=:====:"]
)
def test_anything_else_is_refused(header):
    with pytest.raises(InvalidError) as refused:
        declared_sha256(header)
    assert refused.value.errors[0].field == "Content-Digest"
