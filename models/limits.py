"""Requests per minute of a tenant: a fixed window in Redis where there is one, else in this process's memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import redis
import structlog

from models.settings import Settings

log = structlog.get_logger(__name__)
WINDOW_S = 60
MAX_KEYS = 10_000


class RateLimiter(Protocol):
    """Counts requests by key (a tenant, or an address whose key was refused)."""

    def hit(self, key: str, limit_per_minute: int) -> int | None:
        """Counts one request: ``None`` where it is allowed, else the seconds to wait."""
        ...


class MemoryRateLimiter:
    """Counts in this process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._window = 0
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def hit(self, key: str, limit_per_minute: int) -> int | None:
        now = self._clock()
        window = int(now // WINDOW_S)
        with self._lock:
            if window != self._window:
                self._window, self._counts = window, {}
            count = self._counts.pop(key, 0) + 1
            self._counts[key] = count  # at the end: the first is the one that has been quiet for longest
            if len(self._counts) > MAX_KEYS:
                del self._counts[next(iter(self._counts))]
        return None if count <= limit_per_minute else _rest(now)


class RedisRateLimiter:
    """Counts in Redis, for all processes together; while it is down, in this process."""

    def __init__(self, client: Any, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._fallback = MemoryRateLimiter(clock)
        self._retry_at = 0.0

    def hit(self, key: str, limit_per_minute: int) -> int | None:
        now = self._clock()
        if now < self._retry_at:
            return self._fallback.hit(key, limit_per_minute)
        name = f"{self._prefix}rate:{key}:{int(now // WINDOW_S)}"
        try:
            count, _ = self._client.pipeline(transaction=True).incr(name).expire(name, 2 * WINDOW_S).execute()
        except redis.RedisError as error:
            log.warning("rate_limit.redis_failed", error=type(error).__name__)
            self._retry_at = now + 10
            return self._fallback.hit(key, limit_per_minute)
        return None if int(count) <= limit_per_minute else _rest(now)


def _rest(now: float) -> int:
    return max(1, int(WINDOW_S - now % WINDOW_S))


def build_rate_limiter(settings: Settings) -> RateLimiter:
    """Redis-backed where the broker is Redis, so that all API processes share it."""
    if settings.broker_url.startswith(("redis://", "rediss://")):
        client = redis.Redis.from_url(settings.broker_url, socket_timeout=0.5, socket_connect_timeout=0.5)
        return RedisRateLimiter(client, settings.broker_key_prefix)
    return MemoryRateLimiter()
