"""Who asks: an API key in the Authorization header (or the pages' cookie), or nobody in local mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from api.context import context_of
from api.origin import require_same_origin, trusted_origins
from models.errors import LimitError, UnauthorizedError
from models.principal import Principal, Scope, local_principal
from models.use_cases.keys import authenticate as authenticate_key

KEY_COOKIE = "capreplay_key"
"""Set by the sign-in page (HttpOnly, SameSite=Strict, Secure behind TLS); holds the key's text."""
MAX_KEY_LENGTH = 200
FAILURES_PER_MINUTE = 30
UNAUTHORIZED = "give a valid API key: Authorization: Bearer crp_..."

_bearer = HTTPBearer(
    auto_error=False, bearerFormat="crp_<id>_<secret>", description="API key; not needed in local mode (127.0.0.1)"
)


def authenticate(request: Request) -> Principal:
    """The principal of a request, found once and kept with it; counts it against the tenant's requests per minute.

    Opens its own short database session: call it from a thread.

    Raises:
        UnauthorizedError: the same for every cause. ForbiddenError: a cookie's request from another origin.
        LimitError: too many requests of this tenant, or too many refused keys from this address.
    """
    known: Principal | None = getattr(request.state, "principal", None)
    if known is not None:
        return known
    context = context_of(request)
    principal = _principal(request) if context.settings.auth_required else local_principal()
    wait_s = context.limiter.hit(f"tenant:{principal.tenant_id}", context.rates.per_minute(principal))
    if wait_s is not None:
        raise LimitError(
            f"more requests a minute than this tenant may make; wait {wait_s} s",
            code="limit.requests",
            retry_after_s=wait_s,
        )
    request.state.principal = principal
    return principal


def _principal(request: Request) -> Principal:
    text = _key_text(request)
    if not text:
        raise UnauthorizedError(UNAUTHORIZED)
    context = context_of(request)
    try:
        return authenticate_key(context.services, text)
    except UnauthorizedError:
        address = request.client.host if request.client else "unknown"
        wait_s = context.limiter.hit(f"refused:{address}", FAILURES_PER_MINUTE)
        if wait_s is not None:
            raise LimitError(
                f"too many refused keys from this address; wait {wait_s} s",
                code="limit.refused_keys",
                retry_after_s=wait_s,
            ) from None
        raise UnauthorizedError(UNAUTHORIZED) from None


def _key_text(request: Request) -> str:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        text = request.cookies.get(KEY_COOKIE, "")
        if text:
            require_same_origin(request, trusted_origins(context_of(request).settings))
    text = text.strip()
    return text if len(text) <= MAX_KEY_LENGTH and text.isascii() else ""


def principal_of(request: Request, _documented: Annotated[object, Depends(_bearer)] = None) -> Principal:
    """The dependency of every route that is not public."""
    return authenticate(request)


def _holding(scope: Scope) -> Callable[..., Principal]:
    def principal_with_scope(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
        principal.require(scope)
        return principal

    return principal_with_scope


Reader = Annotated[Principal, Depends(_holding("reports:read"))]
TraceWriter = Annotated[Principal, Depends(_holding("traces:write"))]
JobWriter = Annotated[Principal, Depends(_holding("jobs:write"))]
Admin = Annotated[Principal, Depends(_holding("admin"))]
