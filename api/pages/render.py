"""What all pages share: the template with its frame, errors as pages, and the token of their forms."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse

from api.auth import KEY_COOKIE
from api.context import context_of
from api.pages.forms import Form, read_form
from api.reports.environment import environment
from models.errors import AppError, ForbiddenError, UnauthorizedError
from replay.errors import FieldError, ReplayError

CSRF_FIELD = "csrf"


def csrf_token(request: Request) -> str:
    """The token of this visitor's forms: bound to the key in the cookie, or to the installation in local mode."""
    context = context_of(request)
    visitor = request.cookies.get(KEY_COOKIE, "") if context.settings.auth_required else "local"
    return hmac.new(context.settings.signing_key(), b"csrf" + visitor.encode(), hashlib.sha256).hexdigest()


def checked_form(request: Request, form: Annotated[Form, Depends(read_form)]) -> Form:
    """Dependency: a form that came from one of our own pages.

    Raises:
        ForbiddenError: where its token is not this visitor's.
    """
    check_token(request, form)
    return form


def check_token(request: Request, form: Form) -> None:
    """Raises ForbiddenError where the form's token is not this visitor's."""
    if not hmac.compare_digest(form.text(CSRF_FIELD).encode(), csrf_token(request).encode()):
        raise ForbiddenError(
            "this form is out of date: open its page again and send it from there", code="forbidden.csrf"
        )


CheckedForm = Annotated[Form, Depends(checked_form)]


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A rendered page of the site."""
    frame = {
        "path": request.url.path,
        "keyed": context_of(request).settings.auth_required and KEY_COOKIE in request.cookies,
        "csrf": csrf_token(request),
    }
    return HTMLResponse(environment().get_template(template).render(**frame, **context), status_code=status)


def see_other(path: str) -> RedirectResponse:
    """After a form: go and see the result (303)."""
    return RedirectResponse(path, status_code=303)


class PageRoute(APIRoute):
    """Answers errors as pages, and a visitor without a key with the way to the log-in page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except UnauthorizedError:
                target = request.url.path if request.method == "GET" else "/"
                return see_other(f"/login?next={quote(target, safe='/')}")
            except AppError as error:
                return _error_page(request, error.status, error.title, error.detail, error.errors)
            except ReplayError as error:
                return _error_page(request, 422, "Invalid request", error.detail, error.errors)
            except RequestValidationError:
                return _error_page(request, 404, "Not found", "There is nothing at this address.", [])

        return handle


def _error_page(request: Request, status: int, title: str, detail: str, errors: list[FieldError]) -> Response:
    return page(request, "error.html", status=status, title=title, detail=detail, errors=errors)
