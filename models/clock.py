"""The service's clock, so that tests can hold it still."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The present instant, aware, in UTC."""
    return datetime.now(UTC)
