"""Guards against a browser being used against its user: DNS rebinding in local mode, forged requests with a cookie."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import HostError
from api.problems import app_error_response
from models.errors import AppError, ForbiddenError
from models.settings import Settings

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """Whether ``host`` (a name or an address, without port) means this machine only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The host of a Host header without its port; empty where it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _host_and_port(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def trusted_origins(settings: Settings) -> tuple[str, ...]:
    """Origins beside the request's own host whose pages may send unsafe requests."""
    return (*settings.cors_origins, *filter(None, [settings.public_url]))


def is_secure(scope: Scope, settings: Settings) -> bool:
    """Whether users reach us by TLS: as the (trusted) proxy says, or as the public address does."""
    return scope["scheme"] == "https" or settings.public_url.startswith("https://")


def require_same_origin(request: Request, trusted: Collection[str] = ()) -> None:
    """Refuses an unsafe request that a browser sends for another site's page.

    Programs send no Origin and pass; a browser sends it with every unsafe request. ``trusted``: further origins that
    are ours, such as the public address behind a proxy that rewrites Host.

    Raises:
        ForbiddenError: ``forbidden.origin``.
    """
    if request.method in _SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    if origin is not None and _host_and_port(origin) in {_host_and_port(address) for address in trusted}:
        return
    site = request.headers.get("sec-fetch-site", "same-origin")
    foreign = origin is not None and _host_and_port(origin) != request.headers.get("host", "").lower()
    if foreign or site not in ("same-origin", "none"):
        raise ForbiddenError("this request comes from another site's page", code="forbidden.origin")


class LocalGuard:
    """Around an application without keys: answers only under a loopback name, and only to its own pages or programs."""

    def __init__(self, app: ASGIApp, *, trusted: Collection[str] = ()) -> None:
        self._app = app
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            try:
                self._check(request)
            except AppError as error:
                await app_error_response(request, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, request: Request) -> None:
        if not is_loopback(_host_name(request.headers.get("host", ""))):
            raise HostError("without API keys the service answers only as localhost or 127.0.0.1")
        require_same_origin(request, self._trusted)
