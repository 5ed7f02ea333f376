"""What one application holds: no module has state of its own, so two applications may live in one process."""

from __future__ import annotations

from functools import cached_property

from fastapi import Request

from api.metrics import Metrics
from api.pagination import CursorSigner
from api.rates import RequestRates
from api.readiness import ReadinessProbe
from api.streams import StreamSlots
from models.limits import RateLimiter
from models.services import Services
from models.settings import Settings


class ApiContext:
    """The long-lived parts behind the routes. Reached from a request by ``context_of``."""

    def __init__(self, services: Services, limiter: RateLimiter) -> None:
        self.services = services
        self.limiter = limiter
        self.metrics = Metrics(services)
        self.rates = RequestRates(services)
        self.readiness = ReadinessProbe(services)
        self.streams = StreamSlots()

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @cached_property
    def cursors(self) -> CursorSigner:
        """Made on first use: in embedded mode the key is a file in the data folder."""
        return CursorSigner(self.settings.signing_key())


def context_of(request: Request) -> ApiContext:
    """The context of the application that serves ``request``."""
    context: ApiContext = request.app.state.context
    return context
