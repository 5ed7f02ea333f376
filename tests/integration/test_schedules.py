"""Schedules with real beats: one job for each occurrence, however many beats run."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from ingest_reports import ingest_report
from services.process import wait_until
from sqlalchemy import func, select
from stack import PATIENCE_S, Stack, plan_spec

from models.ids import new_id
from models.paging import PageRequest
from models.tables import Blob, Job, Schedule, ScheduleRun, Trace
from models.use_cases import schedules
from worker import ticks

pytestmark = pytest.mark.timeout(240)


def due_schedule(stack: Stack, trace_id: str) -> str:
    """A schedule whose time came a moment ago."""
    with stack.services.database.write() as session:
        schedule = schedules.create_schedule(
            session,
            stack.principal,
            stack.services,
            name="weekly",
            cron="0 6 * * 1",
            zone="Europe/Berlin",
            plan=plan_spec(),
            trace_id=trace_id,
        )
        schedule.next_run_at = datetime.now(UTC) - timedelta(seconds=1)
    return schedule.id


def test_two_beats_start_one_job(stack: Stack) -> None:
    stack.start()
    trace_id = stack.ready_trace()
    if not stack.embedded:
        stack.start("beat")
        stack.start("beat")
    schedule_id = due_schedule(stack, trace_id)

    def runs() -> list[schedules.RunDetail]:
        with stack.services.database.read() as session:
            return schedules.list_runs(session, stack.principal, schedule_id, PageRequest()).items

    wait_until(lambda: bool(runs()), "the schedule to run", PATIENCE_S)
    (run,) = runs()
    assert run.job is not None, run.run.error_detail
    assert stack.wait(run.job.id).job.status == "succeeded", stack.tail()
    assert len(runs()) == 1
    assert run.job.schedule_id == schedule_id


def test_ticks_at_the_same_instant_start_one_run(data_stack: Stack) -> None:
    trace_id = _ready_row(data_stack)
    schedule_id = due_schedule(data_stack, trace_id)
    barrier = threading.Barrier(6)
    started: list[int] = []

    def tick() -> None:
        barrier.wait()
        started.append(ticks.run_schedules(data_stack.services))

    threads = [threading.Thread(target=tick) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [0, 0, 0, 0, 0, 1]
    with data_stack.services.database.read() as session:
        assert session.scalars(select(func.count()).select_from(ScheduleRun)).one() == 1
        assert session.scalars(select(func.count()).select_from(Job).where(Job.kind == "plan")).one() == 1
        following = session.get_one(Schedule, schedule_id).next_run_at
    assert following is not None
    assert following > datetime.now(UTC)


def _ready_row(stack: Stack) -> str:
    """A trace that counts as ready; nothing reads its content here."""
    now = datetime.now(UTC)
    trace_id = new_id("trc")
    with stack.services.database.write() as session:
        session.add(Blob(sha256="a" * 64, bytes=1, last_used_at=now))
        session.flush()
        session.add(
            Trace(
                id=trace_id,
                tenant_id=stack.principal.tenant_id,
                name="row",
                status="ready",
                source_sha256="a" * 64,
                source_bytes=1,
                options={},
                content_key="c" * 64,
                ingest_job_id=new_id("job"),
                canonical_sha256="a" * 64,
                canonical_bytes=1,
                report=ingest_report(),
                created_at=now,
                updated_at=now,
            )
        )
    return trace_id
