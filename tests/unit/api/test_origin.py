"""Which hosts are this machine's own."""

import pytest

from api.origin import is_loopback


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.8.9.10", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", "127.1", "2130706433"]
)
def test_not_loopback(host):
    assert not is_loopback(host)
