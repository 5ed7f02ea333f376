"""Content negotiation of a report."""

import pytest

from api.documents import negotiate
from api.errors import NotAcceptableError


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        ("*/*", "json"),
        ("application/json, text/html", "json"),
        ("text/html, application/json;q=0.9", "html"),
        ("TEXT/CSV", "csv"),
        ("text/csv;q=0.5, text/html;q=0.4, */*;q=0.1", "csv"),
        ("text/*;q=0.5, text/html;q=0.1", "csv"),
        ("text/html;level=1;q=0.3, text/csv;q=0.2", "html"),
        ("*/*;q=0.1, text/html;q=0", "json"),
    ],
)
def test_the_best_form(accept, name):
    assert negotiate(accept).name == name


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "", ",,;;", "*/*;q=0", "text/html;q=x"])
def test_no_form(accept):
    with pytest.raises(NotAcceptableError):
        negotiate(accept)
