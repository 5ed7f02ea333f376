"""Asks what the service needs, not more often than it matters."""

from __future__ import annotations

import threading
import time

from models.services import Services
from models.use_cases.health import Check, readiness

_FRESH_S = 2.0


class ReadinessProbe:
    """Asks at most once in two seconds, however many ask us: the route is public.

    While one caller waits for a dependency that does not answer, the others get the answer before it at once.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._asking = threading.Lock()
        self._asked_at = -_FRESH_S
        self._checks: list[Check] = []

    def checks(self) -> list[Check]:
        """The latest answer; only the very first is waited for by all."""
        if not self._asking.acquire(blocking=not self._checks):
            return self._checks
        try:
            if time.monotonic() - self._asked_at >= _FRESH_S:
                self._checks = readiness(self._services)
                self._asked_at = time.monotonic()
            return self._checks
        finally:
            self._asking.release()
