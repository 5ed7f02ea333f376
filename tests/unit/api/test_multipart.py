"""Forms with files: every byte comes back, and what is no form is refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.errors import BadRequestError
from api.multipart import MAX_PARTS, MAX_TEXT_BYTES, split_form
from models.errors import AppError, InvalidError, TooLargeError

NAMES = st.text(st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters='"\\'), min_size=1, max_size=20)


def split(folder: Path, body: bytes, boundary: bytes) -> tuple[list[tuple[str, str]], list[tuple[str, str, bytes]]]:
    """Texts, and files with their content."""
    path = folder / "body"
    path.write_bytes(body)
    with ExitStack() as stack:
        form = split_form(path, boundary, folder / "parts", stack)
        files = [(name, file, upload.path.read_bytes()) for name, file, upload in form.files]
        assert all(upload.bytes == upload.path.stat().st_size for _, _, upload in form.files)
    assert not list((folder / "parts").iterdir()) if (folder / "parts").exists() else True
    return form.texts, files


def encoded(texts: dict[str, str], files: list[tuple[str, tuple[str, bytes]]]) -> tuple[bytes, bytes]:
    """The body that a client makes, and its boundary."""
    request = httpx.Request("POST", "http://x", data=texts, files=files or {"f": ("a", b"a")})
    return request.read(), request.headers["content-type"].partition("boundary=")[2].encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(NAMES, st.text(st.characters(blacklist_categories=("Cc", "Cs")), max_size=50), max_size=4),
    st.lists(st.binary(min_size=1, max_size=3000) | st.sampled_from([b"\r\n", b"--", b"\r\n--\r\n\r\n", b"\0"])),
)
def test_what_a_client_sends_comes_back(tmp_path: Path, texts: dict[str, str], contents: list[bytes]) -> None:
    files = [("measurements", (f"run {i}.json", content)) for i, content in enumerate(contents)]
    found = split(tmp_path, *encoded(texts, files))
    assert dict(found[0]) == texts
    if files:
        assert found[1] == [(name, file, content) for name, (file, content) in files]


def part(head: str, content: str = "x") -> str:
    return f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", BadRequestError),
        ("nothing of the kind", BadRequestError),
        ("--b\r\n", BadRequestError),
        (part('name="a"'), BadRequestError),
        (part("no name") + "--b--", BadRequestError),
        (part('filename="name=a"') + "--b--", BadRequestError),
        (part('name="a"; filename="a.csv"', "") + "--b--", InvalidError),
        (part('name="a"', "x" * (MAX_TEXT_BYTES + 1)) + "--b--", TooLargeError),
        (part('name="a"', "nul \0") + "--b--", InvalidError),
        (part('name="a"') * (MAX_PARTS + 1) + "--b--", TooLargeError),
        ("--b\r\n" + "y" * 10_000 + part('name="a"') + "--b--", BadRequestError),
    ],
)
def test_what_is_no_form_is_refused(tmp_path: Path, body: str, error: type[AppError]) -> None:
    if not body:
        body = " "  # an empty body is refused before
    with pytest.raises(error):
        split(tmp_path, body.encode(), b"b")


def test_a_preamble_and_an_unchosen_file_are_passed_over(tmp_path: Path) -> None:
    body = "said before\r\n" + part('name="a"', "1") + part('name="f"; filename=""', "") + "--b--\r\nsaid after"
    assert split(tmp_path, body.encode(), b"b") == ([("a", "1")], [])
