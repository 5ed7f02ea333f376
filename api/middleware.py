"""Around every request: an id, security headers, a log line, metrics, and the catch-all for unforeseen errors."""

from __future__ import annotations

import re
import time
import uuid

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics import Metrics
from api.origin import is_secure
from api.problems import internal_error_response
from models.settings import Settings

CSP = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'; "
    "img-src 'self' data:; style-src 'self' 'unsafe-inline'"
)
"""``style-src`` is loosened because the charts' library writes style elements; ``img-src`` for its image export."""
SECURITY_HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" browsers send "Origin: null" with our own forms
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HSTS = "max-age=31536000"
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")

log = structlog.get_logger("api.access")


class RequestContext:
    """The outermost layer. An error that nothing else handled becomes a problem with the request's id."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, settings: Settings) -> None:
        self._app = app
        self._metrics = metrics
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        request_id = _request_id(request)
        scope.setdefault("state", {})["request_id"] = request_id
        secure = is_secure(scope, self._settings)
        started = time.perf_counter()
        status = 0
        body_is_unread = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"

        async def receive_and_note() -> Message:
            nonlocal body_is_unread
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                body_is_unread = False
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                _add_headers(headers, request_id, secure=secure)
                if body_is_unread:  # else the server would go on reading a body that was refused
                    headers["Connection"] = "close"
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive_and_note, send_with_headers)
            except Exception:
                log.exception("unforeseen error", method=scope["method"], path=scope["path"])
                if status:
                    raise  # the answer has begun: the connection must break, so that nobody takes it for whole
                await internal_error_response(request)(scope, receive, send_with_headers)
            finally:
                self._finish(scope, status, time.perf_counter() - started)

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        route = route_template(scope)
        self._metrics.observe_request(scope["method"], route, status, seconds)
        log.info("request", method=scope["method"], route=route, status=status, ms=round(seconds * 1000, 1))


def route_template(scope: Scope) -> str:
    """``/v1/traces/{trace_id}``: the path without what the user put in it; bounded in number, so fit for a label."""
    return str(getattr(scope.get("route"), "path", None) or "unmatched")


def _request_id(request: Request) -> str:
    offered = request.headers.get("x-request-id", "")
    return offered if _REQUEST_ID.match(offered) else uuid.uuid4().hex


def _add_headers(headers: MutableHeaders, request_id: str, *, secure: bool) -> None:
    headers["X-Request-Id"] = request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
    if secure:
        headers.setdefault("Strict-Transport-Security", _HSTS)
