"""Logging in with an API key. The key stays in a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from api.auth import FAILURES_PER_MINUTE, KEY_COOKIE, MAX_KEY_LENGTH
from api.context import context_of
from api.origin import is_secure, require_same_origin, trusted_origins
from api.pages.forms import Form, read_form
from api.pages.render import CheckedForm, PageRoute, page, see_other
from models.errors import LimitError, UnauthorizedError
from models.use_cases import keys

router = APIRouter(route_class=PageRoute)


def _safe_target(target: str) -> str:
    """A path of our own; anything else becomes the home page."""
    own = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if own else "/"


@router.get("/login")
def show_login(request: Request, next_: Annotated[str, Query(alias="next", max_length=500)] = "/") -> Response:
    """Asks for a key; in local mode there is nothing to ask."""
    if not context_of(request).settings.auth_required:
        return see_other("/")
    return page(request, "login.html", title="Log in", target=_safe_target(next_), fault=None)


@router.post("/login")
def log_in(request: Request, form: Annotated[Form, Depends(read_form)]) -> Response:
    """Checks the key and keeps it in the cookie for this browser session."""
    context = context_of(request)
    require_same_origin(request, trusted_origins(context.settings))
    target, text = _safe_target(form.text("next", "/")), form.text("key")
    try:
        keys.authenticate(context.services, text if text.isascii() and len(text) <= MAX_KEY_LENGTH else "")
    except UnauthorizedError:
        address = request.client.host if request.client else "unknown"
        wait_s = context.limiter.hit(f"login:{address}", FAILURES_PER_MINUTE)
        if wait_s is not None:
            raise LimitError(
                f"too many refused keys from this address; wait {wait_s} s", retry_after_s=wait_s
            ) from None
        fault = "This key is not valid. Check that it is complete (crp_...), not revoked and not expired."
        return page(request, "login.html", status=401, title="Log in", target=target, fault=fault)
    answer = see_other(target)
    secure = is_secure(request.scope, context.settings)
    answer.set_cookie(KEY_COOKIE, text, httponly=True, samesite="strict", secure=secure, path="/")
    return answer


@router.post("/logout")
def log_out(_form: CheckedForm) -> Response:
    """Forgets the key."""
    answer = see_other("/login")
    answer.delete_cookie(KEY_COOKIE, path="/")
    return answer
