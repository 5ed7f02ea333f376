"""Cursors: signed, bound to their list, and pages in memory."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from api.pagination import CursorSigner, PageReader, key_page
from models.errors import InvalidError
from models.paging import Cursor, Page

SIGNER = CursorSigner(b"k" * 32)


class Named(BaseModel):
    name: str


@given(st.lists(st.text(), min_size=1, max_size=3), st.text())
def test_a_cursor_is_read_back(position, scope):
    assert SIGNER.decode(scope, SIGNER.encode(scope, position)) == position


@given(st.text(max_size=300))
def test_any_other_text_is_refused(text):
    with pytest.raises(InvalidError):
        SIGNER.decode("scope", text)


@given(st.data())
def test_no_byte_can_be_changed(data):
    cursor = SIGNER.encode("scope", ["2026-11-29T00:00:00+00:00", "job_1"])
    index = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.sampled_from("ABCDEFabcdef0123456789-_").filter(lambda c: c != cursor[index]))
    with pytest.raises(InvalidError):
        SIGNER.decode("scope", cursor[:index] + other + cursor[index + 1 :])


def test_another_scope_and_another_key_are_refused():
    cursor = SIGNER.encode("jobs", ["a"])
    with pytest.raises(InvalidError):
        SIGNER.decode("reports", cursor)
    with pytest.raises(InvalidError):
        CursorSigner(b"o" * 32).decode("jobs", cursor)


def test_a_row_position_keeps_microseconds_and_zone():
    instant = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC)
    first = PageReader(SIGNER, "jobs", 10, None)
    assert first.request().after is None
    cursor = first.next_cursor(Page(items=[1], next=Cursor(instant, "job_1")))
    request = PageReader(SIGNER, "jobs", 10, cursor).request()
    assert request.after == Cursor(instant, "job_1")
    assert request.after.created_at.utcoffset() == timedelta(0)
    assert first.next_cursor(Page(items=[], next=None)) is None


@given(st.sets(st.text(min_size=1, max_size=5), max_size=30), st.integers(1, 7))
def test_pages_in_memory_cover_every_row_once(names, limit):
    rows, seen, cursor = list(names), [], None
    while True:
        page = key_page(PageReader(SIGNER, "s", limit, cursor), rows, lambda n: n, lambda n: Named(name=n))
        assert len(page.items) <= limit
        seen += [item.name for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == sorted(names)
