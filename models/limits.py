"""Requests per minute of a tenant: a fixed window in Redis where there is one, else in this process's memory."""

from __future__ import annotations

from typing import Protocol

from models.settings import Settings


class RateLimiter(Protocol):
    """Counts requests by key (a tenant, or an address whose key was refused)."""

    def hit(self, key: str, limit_per_minute: int) -> int | None:
        """Counts one request: ``None`` where it is allowed, else the seconds to wait."""
        ...


def build_rate_limiter(settings: Settings) -> RateLimiter:
    """Redis-backed where the broker is Redis, so that all API processes share it; a Redis that is down allows all."""
    raise NotImplementedError
