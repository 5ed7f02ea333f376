"""Our own styles and scripts, and Plotly's script from the installed package. Public: they hold nobody's data."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from api.reports.environment import STATIC_FOLDER
from api.reports.html import plotly_file
from models.errors import NotFoundError

router = APIRouter()

_TYPES = {"capreplay.css": "text/css", "icon.svg": "image/svg+xml"} | dict.fromkeys(
    ("charts.js", "upload.js", "job.js"), "text/javascript"
)
_CACHE = {"Cache-Control": "public, max-age=300"}


@router.get("/static/vendor/plotly.min.js")
def get_plotly() -> Response:
    """The charts' library, as its package ships it."""
    return FileResponse(plotly_file(), media_type="text/javascript", headers={"Cache-Control": "public, max-age=86400"})


@router.get("/static/{name}")
def get_static(name: str) -> Response:
    """One of our own files; any other name does not exist."""
    if name not in _TYPES:
        raise NotFoundError("there is no such file")
    return FileResponse(STATIC_FOLDER / name, media_type=_TYPES[name], headers=_CACHE)


@router.get("/favicon.ico")
def get_icon() -> Response:
    """Browsers ask for this name whatever the page says."""
    return FileResponse(STATIC_FOLDER / "icon.svg", media_type=_TYPES["icon.svg"], headers=_CACHE)
