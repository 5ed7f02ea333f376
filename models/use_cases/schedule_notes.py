"""What a schedule's runs and a new schedule should say of their data: that it is old, unread or not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from models.repositories import schedules as schedule_rows
from models.repositories import traces as trace_rows
from models.tables import Job, Schedule, ScheduleRun


def run_notes(
    session: Session, schedule: Schedule, runs: Sequence[ScheduleRun], jobs: Mapping[str, Job]
) -> dict[str, str]:
    """Run id -> why its answer stands on older data than one might think; runs on fresh data have none."""
    stream = trace_rows.list_of_stream(session, schedule.tenant_id, schedule.stream) if schedule.stream else []
    made_at = {trace.id: trace.created_at for trace in stream}
    first_run_at = schedule_rows.first_runs(session, schedule.tenant_id, schedule.id, list(jobs))
    notes = {}
    for run in runs:
        job = jobs.get(run.job_id or "")
        if job is None:
            continue
        said = []
        used_at = made_at.get(job.trace_id or "")
        unread = [
            trace
            for trace in stream
            if used_at is not None and trace.status == "failed" and used_at < trace.created_at <= run.created_at
        ]
        if unread:
            said.append(f"a newer trace of the stream could not be read ({unread[0].name or unread[0].id})")
        if run.created_at > first_run_at.get(job.id, run.created_at):
            said.append("nothing new since an earlier run: this is its answer")
        if said:
            notes[run.id] = "; ".join(said)
    return notes


def source_note(session: Session, schedule: Schedule) -> str | None:
    """That a schedule's stream has no ready trace yet; ``None`` where it has one, or needs none."""
    if schedule.stream is None or trace_rows.find_newest_ready(session, schedule.tenant_id, schedule.stream):
        return None
    return f"the stream {schedule.stream!r} has no ready trace yet: runs fail until one is uploaded with this label"
