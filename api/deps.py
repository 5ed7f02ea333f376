"""What routes ask for: sessions, services, pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from sqlalchemy.orm import Session

from api.auth import principal_of
from api.context import ApiContext, context_of
from api.pagination import MAX_CURSOR, MAX_LIMIT, PageReader
from models.principal import Principal
from models.services import Services

LABEL = r"^[^\x00-\x1f\x7f]*$"
"""Text without control characters: shown to people, never used as a path."""

Context = Annotated[ApiContext, Depends(context_of)]


def services_of(context: Context) -> Services:
    """The process's services."""
    return context.services


def request_id_of(request: Request) -> str:
    """The id under which the log has this request."""
    return str(request.state.request_id)


def read_session(context: Context) -> Iterator[Session]:
    """A session for a GET."""
    with context.services.database.read() as session:
        yield session


def write_session(context: Context) -> Iterator[Session]:
    """A session that commits, and rings for new jobs, before the response is sent; an error rolls it back."""
    with context.services.database.write() as session:
        yield session


CurrentServices = Annotated[Services, Depends(services_of)]
RequestId = Annotated[str, Depends(request_id_of)]
# The scope "function" ends a session before the response goes out; with the default one a client could be told of a job
# that is not committed yet.
ReadSession = Annotated[Session, Depends(read_session, scope="function")]
WriteSession = Annotated[Session, Depends(write_session, scope="function")]

TraceId = Annotated[str, Path(pattern=r"^trc_[0-9a-f]{32}$", description="Id of a trace")]
JobId = Annotated[str, Path(pattern=r"^job_[0-9a-f]{32}$", description="Id of a job")]
ReportId = Annotated[str, Path(pattern=r"^rep_[0-9a-f]{32}$", description="Id of a report")]
ScheduleId = Annotated[str, Path(pattern=r"^sch_[0-9a-f]{32}$", description="Id of a schedule")]
KeyId = Annotated[str, Path(pattern=r"^key_[0-9a-f]{32}$", description="Id of an API key")]

_Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most items on a page")]
CursorText = Annotated[str | None, Query(max_length=MAX_CURSOR, description="next_cursor of the page before")]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=400, description="ETag of the version that you read")
]


def page_reader(
    request: Request,
    context: Context,
    principal: Annotated[Principal, Depends(principal_of)],
    limit: _Limit = 50,
    cursor: CursorText = None,
) -> PageReader:
    """The page asked for; its cursors hold for this tenant, this list and these filters alone."""
    filters = sorted(
        (name, value) for name, value in request.query_params.multi_items() if name not in ("limit", "cursor")
    )
    scope = json.dumps([principal.tenant_id, request.url.path, filters])
    return PageReader(context.cursors, scope, limit, cursor)


Paging = Annotated[PageReader, Depends(page_reader)]


def stream_slot(context: Context, principal: Annotated[Principal, Depends(principal_of)]) -> Iterator[None]:
    """Holds one of the tenant's event streams until the response has ended. Raises LimitError where there is none."""
    with context.streams.hold(principal.tenant_id):
        yield


StreamSlot = Annotated[None, Depends(stream_slot, scope="request")]
