"""HTML pages: server-rendered, usable without script except charts, upload and live progress."""

from __future__ import annotations

from fastapi import APIRouter

from api.pages import catalogue, home, jobs, login, plans, reports, schedules, static, traces

router = APIRouter(include_in_schema=False)
"""Everything a browser uses. ``api.app`` includes it as it stands."""

for _part in (static, login, home, traces, plans, jobs, reports, schedules, catalogue):
    router.include_router(_part.router)

__all__ = ["router"]
