"""Keyset pages: an opaque, signed cursor over ``(created_at, id)`` or a key; no offset, no total."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, Field

from models.errors import InvalidError
from models.paging import MAX_LIMIT, Cursor, Page, PageRequest
from replay.errors import FieldError

MAX_CURSOR = 512
_SIGNATURE_BYTES = 16

Item = TypeVar("Item", bound=BaseModel)
Row = TypeVar("Row")

__all__ = ["MAX_CURSOR", "MAX_LIMIT", "CursorSigner", "ListPage", "PageReader", "key_page"]


class ListPage(BaseModel, Generic[Item]):
    """One page. ``next_cursor`` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = Field(description="Give it back as ?cursor= for the next page")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@dataclass(frozen=True)
class CursorSigner:
    """Makes and reads cursors. One of another list, other filters or another tenant does not verify."""

    key: bytes

    def encode(self, scope: str, position: Sequence[str]) -> str:
        """The cursor behind ``position``. ``scope`` names the list, its filters and the tenant."""
        payload = json.dumps(list(position), separators=(",", ":")).encode()
        return _text(self._signature(scope, payload) + payload)

    def decode(self, scope: str, cursor: str) -> list[str]:
        """Raises InvalidError (``cursor.invalid``) for anything that ``encode`` did not make for this ``scope``."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid_cursor() from None
        signature, payload = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if _text(raw) != cursor or not hmac.compare_digest(signature, self._signature(scope, payload)):
            raise _invalid_cursor()
        return [str(part) for part in json.loads(payload)]

    def _signature(self, scope: str, payload: bytes) -> bytes:
        message = len(scope.encode()).to_bytes(4, "big") + scope.encode() + payload
        return hmac.digest(self.key, b"cursor" + message, hashlib.sha256)[:_SIGNATURE_BYTES]


@dataclass(frozen=True)
class PageReader:
    """Reads ``limit`` and ``cursor`` of one list and writes its next cursor."""

    signer: CursorSigner
    scope: str
    limit: int
    cursor: str | None

    def request(self) -> PageRequest:
        """Which page to fetch. Raises InvalidError for a cursor that is not one of this list."""
        if self.cursor is None:
            return PageRequest(limit=self.limit)
        created_at, row_id = self.signer.decode(self.scope, self.cursor)
        return PageRequest(limit=self.limit, after=Cursor(datetime.fromisoformat(created_at), row_id))

    def next_cursor(self, page: Page[Row]) -> str | None:
        """The cursor of the page after ``page``; ``None`` on the last."""
        after = page.next
        return None if after is None else self.signer.encode(self.scope, (after.created_at.isoformat(), after.id))

    def page(self, page: Page[Row], convert: Callable[[Row], Item]) -> ListPage[Item]:
        """The page as the client sees it."""
        return ListPage(items=[convert(row) for row in page.items], next_cursor=self.next_cursor(page))


def key_page(
    reader: PageReader, rows: Sequence[Row], key: Callable[[Row], str], convert: Callable[[Row], Item]
) -> ListPage[Item]:
    """A page of a list held in memory, in the order of ``key``, which is unique."""
    ordered = sorted(rows, key=key)
    if reader.cursor is not None:
        (last,) = reader.signer.decode(reader.scope, reader.cursor)
        ordered = [row for row in ordered if key(row) > last]
    shown = ordered[: reader.limit]
    more = len(ordered) > len(shown)
    cursor = reader.signer.encode(reader.scope, (key(shown[-1]),)) if more else None
    return ListPage(items=[convert(row) for row in shown], next_cursor=cursor)


def _invalid_cursor() -> InvalidError:
    cure = "give back next_cursor as it came, with the same filters; leave it out for the first page"
    return InvalidError(
        "this cursor is not one of this list",
        code="cursor.invalid",
        errors=[FieldError(cure, field="cursor", cure=cure)],
    )
