"""ETags as RFC 9110 compares them."""

import pytest

from api.conditional import etag, matches, required_version
from api.errors import PreconditionRequiredError
from models.errors import VersionError


@pytest.mark.parametrize("header", ['"5"', 'W/"5"', '"4", "5"', ' "5" ', "*", '"4",W/"5"'])
def test_if_none_match_names_it(header):
    assert matches(header, etag(5))


@pytest.mark.parametrize("header", [None, "", '"50"', "5", '"4", "6"', "**"])
def test_if_none_match_does_not(header):
    assert not matches(header, etag(5))


def test_a_version_is_read_from_if_match():
    assert required_version(etag(12)) == 12


def test_no_if_match_is_428():
    with pytest.raises(PreconditionRequiredError):
        required_version(None)


@pytest.mark.parametrize(
    "header", ["", "*", "5", 'W/"5"', '"abc"', '"-1"', '"1.5"', '"²"', '"5", "6"', '"' + "9" * 19 + '"']
)
def test_any_other_if_match_is_no_version(header):
    with pytest.raises(VersionError):
        required_version(header)
