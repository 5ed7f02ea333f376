"""Keyset pages over ``(created_at, id)``, newest first. The API signs and encodes the cursor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

MAX_LIMIT = 200
T = TypeVar("T")


@dataclass(frozen=True)
class Cursor:
    """The last item of the page before."""

    created_at: datetime
    id: str


@dataclass(frozen=True)
class PageRequest:
    """Which page: at most ``limit`` items (1 to 200) after ``after``."""

    limit: int = 50
    after: Cursor | None = None


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of items and where the next one starts (``None``: this is the last)."""

    items: list[T]
    next: Cursor | None
