"""Lists on pages: the same signed cursors as in the API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from api.auth import Reader
from api.context import context_of
from api.deps import CursorText
from api.pagination import PageReader
from models.paging import Page


class ListPage:
    """Where a list page starts, and the address of the next one."""

    def __init__(self, request: Request, principal: Reader, cursor: CursorText = None) -> None:
        self._path = request.url.path
        scope = f"page:{request.url.path}:{principal.tenant_id}"
        self._reader = PageReader(context_of(request).cursors, scope, 50, cursor)
        self.request = self._reader.request()

    def next_href(self, found: Page[Any]) -> str | None:
        """The address of the next page; ``None`` on the last."""
        cursor = self._reader.next_cursor(found)
        return None if cursor is None else f"{self._path}?cursor={cursor}"


CurrentPage = Annotated[ListPage, Depends(ListPage)]
