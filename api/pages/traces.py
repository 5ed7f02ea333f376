"""Traces: the list, and one trace with its cleaning report and profile."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.auth import Reader, TraceWriter
from api.deps import CurrentServices, ReadSession, TraceId, WriteSession
from api.pages import profile
from api.pages.jobs import fault_lines
from api.pages.paging import CurrentPage
from api.pages.render import CheckedForm, PageRoute, page, see_other
from models.use_cases import catalogue, jobs, traces
from replay.traces.report import IngestReport

router = APIRouter(route_class=PageRoute)


@router.get("/traces")
def list_traces(request: Request, session: ReadSession, principal: Reader, where: CurrentPage) -> Response:
    """All traces, newest first."""
    found = traces.list_traces(session, principal, where.request)
    return page(request, "traces.html", title="Traces", traces=found.items, next_href=where.next_href(found))


@router.get("/traces/{trace_id}")
def show_trace(request: Request, session: ReadSession, principal: Reader, trace_id: TraceId) -> Response:
    """One trace: its ingest while that runs, then what it holds."""
    trace = traces.get_trace(session, principal, trace_id)
    shown: dict[str, Any] = {}
    if trace.status == "ready" and trace.report is not None:
        models = catalogue.catalogue_for(session, principal).models.values()
        shown = profile.context(IngestReport.model_validate(trace.report), models)
    else:
        detail = jobs.get_job(session, principal, trace.ingest_job_id)
        shown = {"detail": detail, "job": detail.job, "faults": fault_lines(detail.job)}
    return page(request, "trace.html", title=trace.name, trace=trace, **shown)


@router.post("/traces/{trace_id}/delete")
def delete_trace(
    _form: CheckedForm, session: WriteSession, services: CurrentServices, principal: TraceWriter, trace_id: TraceId
) -> Response:
    """Deletes a trace that no live job and no schedule uses."""
    traces.delete_trace(session, principal, services, trace_id)
    return see_other("/traces")
