"""The routes under ``/v1``: each parses, authorises, calls one use case and shapes the answer."""

from __future__ import annotations

from starlette.routing import BaseRoute

from api.routes import calibrations, catalogue, jobs, keys, plans, reports, schedules, start_up_logs, traces, uploads

V1_ROUTES: tuple[BaseRoute, ...] = tuple(
    route
    for module in (traces, uploads, catalogue, plans, jobs, reports, schedules, keys, start_up_logs, calibrations)
    for route in module.router.routes
)
"""All routes of version 1, whole: their routers need no including."""
