"""Jobs: the list, and one job with live progress, its parts and its way to the result."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.auth import JobWriter, Reader
from api.deps import CurrentServices, JobId, ReadSession, WriteSession
from api.pages.paging import CurrentPage
from api.pages.render import CheckedForm, PageRoute, page, see_other
from models.tables import Job
from models.use_cases import jobs, schedules, traces
from models.use_cases.jobs import JobDetail

router = APIRouter(route_class=PageRoute)

FINAL = ("succeeded", "failed", "cancelled")


@router.get("/jobs")
def list_jobs(request: Request, session: ReadSession, principal: Reader, where: CurrentPage) -> Response:
    """All jobs, newest first."""
    found = jobs.list_jobs(session, principal, where.request)
    return page(request, "jobs.html", title="Jobs", jobs=found.items, next_href=where.next_href(found))


@router.get("/jobs/{job_id}")
def show_job(request: Request, session: ReadSession, principal: Reader, job_id: JobId) -> Response:
    """One job, kept current by script or by refreshing."""
    detail = jobs.get_job(session, principal, job_id)
    parts = jobs.list_children(session, principal, job_id) if detail.job.kind == "plan" else []
    has_trace = traces.has_trace(session, principal, detail.job.trace_id)
    title = detail.job.name or f"{detail.job.kind.capitalize()} job"
    return page(
        request,
        "job.html",
        title=title,
        detail=detail,
        job=detail.job,
        parts=parts,
        words=words(detail),
        faults=(faults := fault_lines(detail.job)),
        says_all=any(detail.job.error_detail in one for one in faults) if detail.job.error_detail else False,
        result=result(detail) if has_trace or detail.job.kind != "ingest" else None,
        has_trace=has_trace,
        has_schedule=schedules.has_schedule(session, principal, detail.job.schedule_id),
    )


@router.get("/jobs/{job_id}/state")
def get_state(session: ReadSession, principal: Reader, job_id: JobId) -> dict[str, Any]:
    """What ``job.js`` asks for about once a second."""
    detail = jobs.get_job(session, principal, job_id)
    final = detail.job.status in FINAL
    location = result(detail) if detail.job.status == "succeeded" else None
    return {"progress": detail.progress, "words": words(detail), "final": final, "location": location}


@router.post("/jobs/{job_id}/cancel")
def cancel_job(
    _form: CheckedForm, session: WriteSession, services: CurrentServices, principal: JobWriter, job_id: JobId
) -> Response:
    """Asks a job to stop."""
    jobs.cancel_job(session, principal, services, job_id)
    return see_other(f"/jobs/{job_id}")


def result(detail: JobDetail) -> str | None:
    """The page of what a job made; ``None`` while there is none."""
    if detail.report_id is not None:
        return f"/reports/{detail.report_id}"
    if detail.calibration_id is not None:
        return f"/calibrations/{detail.calibration_id}"
    if detail.job.kind == "ingest" and detail.job.trace_id is not None and detail.job.status == "succeeded":
        return f"/traces/{detail.job.trace_id}"
    return None


def fault_lines(job: Job) -> list[str]:
    """A failed job's faults as sentences: where, what, and the cure."""
    lines = []
    for fault in job.errors or []:
        known = fault if isinstance(fault, dict) else {"detail": str(fault)}
        place = [str(known["field"])] if known.get("field") else []
        place += [f"line {known['line']}"] if known.get("line") is not None else []
        place += [f"column {known['column']}"] if known.get("column") else []
        detail, cure = str(known.get("detail") or known.get("rule") or ""), str(known.get("cure") or "")
        text = detail if not cure or cure in detail else f"{detail} ({cure})"
        lines.append(f"{', '.join(place)}: {text}" if place else text)
    return lines


def words(detail: JobDetail) -> str:
    """The state in a few words: ``running: 3 of 12 candidates done``."""
    job = detail.job
    state = "stopping" if job.cancel_requested_at is not None and job.status == "running" else job.status
    total = sum(detail.children.values())
    if total and job.status in ("queued", "running"):
        done = detail.children.get("succeeded", 0)
        return f"{state}: {done} of {total} candidates done" if done < total else f"{state}: writing the report"
    return f"{state}, attempt {job.attempt} of {job.max_attempts}" if state == "running" and job.attempt > 1 else state
