"""Every error as ``application/problem+json`` (RFC 9457): one shape, no traceback, the field and the cure named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as DatabaseTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.errors import TUS_VERSION, TusVersionError
from models.errors import AppError, UnavailableError
from replay.errors import FieldError, ReplayError
from replay.faults import plain_faults

MEDIA_TYPE = "application/problem+json"
_MAX_ERRORS = 20
_MAX_DETAIL = 2000
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 429: "limit_reached"}

log = structlog.get_logger(__name__)


class ProblemField(BaseModel):
    """One fault: the field of the request, or the line and column of a file; the rule it breaks; the cure."""

    model_config = ConfigDict(extra="forbid")

    detail: str
    field: str | None = None
    line: int | None = None
    column: str | None = None
    rule: str | None = None
    cure: str | None = None


class Problem(BaseModel):
    """An error. ``code`` is stable and listed in docs/api.md; ``detail`` is a sentence for people."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="urn:capreplay:problem:CODE")
    title: str
    status: int
    detail: str
    instance: str = Field(description="Path that was asked")
    code: str
    request_id: str = Field(description="Also in the X-Request-Id header and in the service's logs")
    errors: list[ProblemField] = Field(default_factory=list, max_length=_MAX_ERRORS)


def problem_response(
    request: Request,
    *,
    status: int,
    code: str,
    title: str,
    detail: str,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response of one problem; nothing of the exception but what is passed in."""
    problem = Problem(
        type=f"urn:capreplay:problem:{code}",
        title=title,
        status=int(status),
        detail=_clean(detail),
        instance=_clean(request.url.path)[:500],
        code=code,
        request_id=str(request.scope.get("state", {}).get("request_id", "")),
        errors=[_field(error) for error in errors[:_MAX_ERRORS]],
    )
    body = json.dumps(problem.model_dump(exclude_none=True), ensure_ascii=False).encode()
    return Response(body, status_code=int(status), media_type=MEDIA_TYPE, headers=dict(headers or {}))


def _clean(text: str) -> str:
    """Text that always encodes: no lone surrogates, no endless lines."""
    return text[:_MAX_DETAIL].encode("utf-8", "replace").decode()


def _field(error: FieldError) -> ProblemField:
    def clean(text: str | None) -> str | None:
        return None if text is None else _clean(text)

    return ProblemField(
        detail=_clean(error.detail),
        field=clean(error.field),
        line=error.line,
        column=clean(error.column),
        rule=clean(error.rule),
        cure=clean(error.cure),
    )


def app_error_response(request: Request, error: AppError) -> Response:
    """A use case's error as it stands; one of status 500 and above hides its detail in the log."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, TusVersionError):
        headers["Tus-Version"] = TUS_VERSION
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="capreplay"'
    return problem_response(
        request,
        status=error.status,
        code=error.code,
        title=error.title,
        detail=error.detail,
        errors=error.errors,
        headers=headers,
    )


def replay_error_response(request: Request, error: ReplayError) -> Response:
    """The domain's refusal of a spec or a file."""
    return problem_response(
        request,
        status=422,
        code=error.code,
        title="Invalid request",
        detail=error.detail,
        errors=error.errors,
    )


def validation_response(request: Request, error: RequestValidationError) -> Response:
    """pydantic's findings, without echoing the input."""
    faults = _request_faults(error.errors())
    first = faults[0] if faults else FieldError("the request is invalid")
    where = f"{first.field}: " if first.field else ""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return problem_response(
        request,
        status=422,
        code="validation",
        title="Invalid request",
        detail=f"{where}{first.detail}{more}",
        errors=faults,
    )


def _request_faults(findings: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    """The findings with the field's path as the client wrote it: where it was looked for goes without saying."""
    faults = []
    for finding in findings:
        place, *path = [str(part) for part in finding.get("loc", ())] or ["body"]
        if finding.get("type") == "json_invalid":
            reason = finding.get("ctx", {}).get("error", "syntax error")
            detail = f"the body is not JSON: {reason} at character {'.'.join(path)}"
            faults.append(FieldError(detail, field=place, rule="json_invalid"))
        else:
            faults += plain_faults([{**finding, "loc": path or [place]}])
    return faults


def http_exception_response(request: Request, error: HTTPException) -> Response:
    """What the framework itself refuses: unknown path, wrong method, unreadable body."""
    status = HTTPStatus(error.status_code)
    code = _CODES.get(status, status.phrase.lower().replace(" ", "_").replace("-", "_"))
    detail = str(error.detail)
    if status is HTTPStatus.NOT_FOUND:
        detail = "there is nothing at this address; the routes are listed in /openapi.json"
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"{request.method} is not possible here; see the Allow header"
    return problem_response(
        request, status=status, code=code, title=status.phrase, detail=detail, headers=error.headers
    )


def internal_error_response(request: Request) -> Response:
    """An error nobody foresaw: the request id leads to it in the log; nothing else is told."""
    return problem_response(
        request,
        status=500,
        code="internal",
        title="Internal error",
        detail="something went wrong on our side; the log has it under this request id",
    )


def install_problem_handlers(app: FastAPI) -> None:
    """Makes each kind of error a problem. The catch-all for unforeseen ones is ``api.middleware``."""

    async def on_app_error(request: Request, error: Any) -> Response:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("request refused", code=error.code, detail=error.detail)
        return app_error_response(request, error)

    async def on_replay_error(request: Request, error: Any) -> Response:
        return replay_error_response(request, error)

    async def on_validation(request: Request, error: Any) -> Response:
        return validation_response(request, error)

    async def on_http(request: Request, error: Any) -> Response:
        return http_exception_response(request, error)

    async def on_database(request: Request, error: Any) -> Response:
        log.error("the database does not answer", error=type(error).__name__, detail=str(getattr(error, "orig", error)))
        return app_error_response(
            request, UnavailableError("the database does not answer: try again in a moment", retry_after_s=5)
        )

    app.add_exception_handler(OperationalError, on_database)
    app.add_exception_handler(InterfaceError, on_database)
    app.add_exception_handler(DatabaseTimeoutError, on_database)
    app.add_exception_handler(AppError, on_app_error)
    app.add_exception_handler(ReplayError, on_replay_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
