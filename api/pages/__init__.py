"""HTML pages: server-rendered, usable without script except charts, upload and live progress."""

from __future__ import annotations

from fastapi import APIRouter

from api.pages.calibrations import router as calibrations_router
from api.pages.catalogue import router as catalogue_router
from api.pages.home import router as home_router
from api.pages.jobs import router as jobs_router
from api.pages.login import router as login_router
from api.pages.plans import router as plans_router
from api.pages.reports import router as reports_router
from api.pages.schedules import router as schedules_router
from api.pages.static import router as static_router
from api.pages.traces import router as traces_router

router = APIRouter(include_in_schema=False)
"""Everything a browser uses. ``api.app`` includes it as it stands."""

for _part in (
    static_router,
    login_router,
    home_router,
    traces_router,
    plans_router,
    jobs_router,
    reports_router,
    schedules_router,
    calibrations_router,
    catalogue_router,
):
    router.include_router(_part)

__all__ = ["router"]
