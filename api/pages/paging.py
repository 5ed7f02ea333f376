"""Lists on pages: the same signed cursors as in the API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from api.auth import Reader
from api.context import context_of
from api.deps import CursorText
from models.paging import Cursor, Page, PageRequest


class ListPage:
    """Where a list page starts, and the address of the next one."""

    def __init__(self, request: Request, principal: Reader, cursor: CursorText = None) -> None:
        self._signer = context_of(request).cursors
        self._scope = f"page:{request.url.path}:{principal.tenant_id}"
        self._path = request.url.path
        after = Cursor(*self._signer.decode(self._scope, cursor)) if cursor else None
        self.request = PageRequest(limit=50, after=after)

    def next_href(self, found: Page[Any]) -> str | None:
        """The address of the next page; ``None`` on the last."""
        if found.next is None:
            return None
        return f"{self._path}?cursor={self._signer.encode(self._scope, (found.next.created_at, found.next.id))}"


CurrentPage = Annotated[ListPage, Depends(ListPage)]
