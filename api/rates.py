"""How many requests a minute a tenant may make: its own limit or the installation's, looked up now and then."""

from __future__ import annotations

import threading
import time

from models.principal import Principal
from models.services import Services
from models.use_cases.limits import limits_of

_FRESH_S = 30.0
_MAX_TENANTS = 10_000


class RequestRates:
    """Remembers each tenant's limit for half a minute, so that a request costs no query for it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, int]] = {}

    def per_minute(self, principal: Principal) -> int:
        """The limit that binds this principal. May read the database: call it from a thread."""
        now = time.monotonic()
        with self._lock:
            known = self._known.get(principal.tenant_id)
        if known is not None and now - known[0] < _FRESH_S:
            return known[1]
        with self._services.database.read() as session:
            limit = limits_of(session, principal, self._services).requests_per_minute
        with self._lock:
            if len(self._known) >= _MAX_TENANTS:
                self._known.clear()
            self._known[principal.tenant_id] = (now, limit)
        return limit
