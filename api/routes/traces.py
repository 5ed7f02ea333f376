"""Traces: upload, list, read, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import Reader, TraceWriter
from api.deps import LABEL, Context, CurrentServices, Paging, ReadSession, RequestId, TraceId, WriteSession
from api.ingest_options import UploadParameters, upload_parameters
from api.pagination import ListPage
from api.replies import entity
from api.schemas.common import problems
from api.schemas.traces import CleaningReportOut, TraceOut, TraceProfileOut
from api.stored_traces import accepted, readable_trace, store_trace
from api.strict import StrictRoute
from api.uploads import receive_upload, storage_errors
from models.blobs import UploadWriter
from models.use_cases import traces as use_cases
from models.use_cases.catalogue import catalogue_for

router = APIRouter(prefix="/v1", tags=["traces"], route_class=StrictRoute)

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_RAW_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file itself: CSV, JSON or Parquet, plain, gzip, zstd or a zip of one file",
        "content": {"application/octet-stream": _BINARY},
    }
}


@router.put(
    "/traces",
    operation_id="put_trace",
    status_code=202,
    response_model=TraceOut,
    responses={200: {"model": TraceOut, "description": "This file is here already"}, **problems(400, 413, 415, 503)},
    openapi_extra=_RAW_BODY,
    summary="Upload a trace",
)
async def put_trace(
    request: Request,
    context: Context,
    principal: TraceWriter,
    parameters: Annotated[UploadParameters, Depends(upload_parameters)],
    request_id: RequestId,
) -> Response:
    """The raw file as body. Cleaning is a job (``Location``); the same file with the same options is one trace."""
    with storage_errors(), UploadWriter(context.settings.tmp_path, context.settings.upload_max_bytes) as writer:
        upload = await receive_upload(request, context, principal, writer)
        stored = await run_in_threadpool(store_trace, context, principal, upload, parameters, request_id)
    return accepted(stored)


@router.get("/traces", operation_id="list_traces", responses=problems(), summary="Traces, newest first")
def list_traces(
    principal: Reader,
    session: ReadSession,
    paging: Paging,
    stream: Annotated[str | None, Query(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")] = None,
) -> ListPage[TraceOut]:
    """All of the tenant's, or one stream's."""
    return paging.page(use_cases.list_traces(session, principal, paging.request(), stream=stream), TraceOut.of)


@router.get(
    "/traces/{trace_id}",
    operation_id="get_trace",
    response_model=TraceOut,
    responses=problems(404),
    summary="One trace",
)
def get_trace(request: Request, principal: Reader, session: ReadSession, trace_id: TraceId) -> Response:
    """``status`` is ready once its ingest job has succeeded."""
    row = use_cases.get_trace(session, principal, trace_id)
    body = TraceOut.of(row)
    return entity(request, body, version=row.version, retry_after_s=1 if body.status == "ingesting" else None)


@router.delete(
    "/traces/{trace_id}",
    operation_id="delete_trace",
    status_code=204,
    responses=problems(404, 409),
    summary="Delete a trace",
)
def delete_trace(principal: TraceWriter, session: WriteSession, services: CurrentServices, trace_id: TraceId) -> None:
    """Its files follow after a grace time; reports made of it stay."""
    use_cases.delete_trace(session, principal, services, trace_id)


@router.get(
    "/traces/{trace_id}/cleaning-report",
    operation_id="get_cleaning_report",
    response_model=CleaningReportOut,
    responses=problems(404, 409),
    summary="How the file was read",
)
def get_cleaning_report(request: Request, principal: Reader, session: ReadSession, trace_id: TraceId) -> Response:
    """Format and why, assumed unit and zone, rows read = kept + rejected by reason; 422 says why a file was refused."""
    return entity(request, CleaningReportOut.of(readable_trace(session, principal, trace_id)))


@router.get(
    "/traces/{trace_id}/profile",
    operation_id="get_trace_profile",
    response_model=TraceProfileOut,
    responses=problems(404, 409),
    summary="What the traffic looks like",
)
def get_trace_profile(
    request: Request,
    principal: Reader,
    session: ReadSession,
    trace_id: TraceId,
    model: Annotated[
        str | None,
        Query(min_length=1, max_length=300, pattern=LABEL, description="Count the requests too long for this model"),
    ] = None,
) -> Response:
    """Rates, burstiness, lengths, over-length requests, sessions, prefix reuse, tenants, load by hour and weekday; what
    the old system measured, apart."""
    trace = readable_trace(session, principal, trace_id)
    asked = catalogue_for(session, principal).model(model) if model is not None else None
    return entity(request, TraceProfileOut.of(trace, asked))
