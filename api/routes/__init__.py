"""The routes under ``/v1``: each parses, authorises, calls one use case and shapes the answer."""

from __future__ import annotations

from fastapi import APIRouter

from api.routes import catalogue, jobs, keys, plans, reports, schedules, traces


def v1_router() -> APIRouter:
    """All routes of version 1."""
    router = APIRouter()
    for module in (traces, catalogue, plans, jobs, reports, schedules, keys):
        router.include_router(module.router)
    return router
