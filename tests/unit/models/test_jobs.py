"""The state machine: who may do what to a job, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest
from servicetools import made_job
from sqlalchemy import select
from sqlalchemy.orm import Session

from models import jobs
from models.hashing import input_hash
from models.jobs import Failure, LostJobError
from models.repositories import jobs as rows
from models.repositories import workers
from models.services import Services
from models.tables import Job
from replay.errors import FieldError

STALE = timedelta(seconds=60)


def add(services: Services, session: Session, kind: str = "replay", **values: object) -> Job:
    return jobs.create(session, made_job(services, kind, **values)).job


def claimed(services: Services, session: Session, **values: object) -> Job:
    job = add(services, session, **values)
    taken = jobs.claim(session, job.id, "w", services.clock())
    assert taken is not None
    return taken


def test_a_job_is_claimed_once(services: Services) -> None:
    with services.database.write() as session:
        job = claimed(services, session)
        assert (job.status, job.attempt, job.claimed_by, job.started_at) == ("running", 1, "w", services.clock())
        assert jobs.claim(session, job.id, "other", services.clock()) is None
        assert jobs.claim(session, "job_of_nobody", "other", services.clock()) is None


def test_a_stopping_worker_claims_nothing_and_the_message_is_sent_again(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        workers.register(
            session, name="w", queues="replay", concurrency=1, code_version="v", blob_probe_ok=None, now=now
        )
        workers.mark_stopping(session, "w", now)
        job = add(services, session)
        rows.mark_dispatched(session, [job.id], now)
        assert rows.list_undispatched(session, now, 60) == []
        assert jobs.claim(session, job.id, "w", now) is None
        assert rows.list_undispatched(session, now, 60) == [(job.id, False)]


def test_a_heartbeat_reads_what_the_runner_must_obey(services: Services, clock: object) -> None:
    now = services.clock()
    with services.database.write() as session:
        job = claimed(services, session)
        assert jobs.beat(session, job.id, 1, 0.4, now) == jobs.Beat(owned=True)
        assert jobs.beat(session, job.id, 2, 0.9, now) == jobs.Beat(owned=False)
        session.refresh(job)
        assert job.progress == 0.4
        jobs.cancel(session, job, now)
        assert jobs.beat(session, job.id, 1, 0.5, now).cancelled
        workers.register(
            session, name="w", queues="replay", concurrency=1, code_version="v", blob_probe_ok=None, now=now
        )
        workers.mark_stopping(session, "w", now)
        assert jobs.beat(session, job.id, 1, 0.5, now).stopping


def test_only_the_owner_of_the_attempt_ends_it(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        job = claimed(services, session)
        with pytest.raises(LostJobError):
            jobs.finish(session, job, 2, now)
        assert not jobs.fail(session, job, 2, Failure("x", "y"), now)
        assert not jobs.requeue(session, job, 2, now)
        jobs.finish(session, job, 1, now)
        assert (job.status, job.progress, job.finished_at) == ("succeeded", 1.0, now)
        with pytest.raises(LostJobError):
            jobs.finish(session, job, 1, now)


def test_the_reaper_takes_silent_jobs_until_their_attempts_are_used_up(services: Services, clock: object) -> None:
    with services.database.write() as session:
        job = add(services, session)
        for attempt in (1, 2, 3):
            assert jobs.claim(session, job.id, "w", services.clock()) is not None
            assert job.attempt == attempt
            assert jobs.reap(session, job.id, services.clock() - STALE, services.settings, services.clock()) is None
            clock.advance(seconds=61)
            outcome = jobs.reap(session, job.id, services.clock() - STALE, services.settings, services.clock())
            assert outcome == ("queued" if attempt < 3 else "failed")
        assert job.error_code == "worker_lost"


def test_a_job_stopped_by_the_time_limit_is_not_tried_again(services: Services, clock: object) -> None:
    with services.database.write() as session:
        job = claimed(services, session)
        clock.advance(seconds=services.settings.job_time_limit_s)
        jobs.beat(session, job.id, 1, 0.5, services.clock())
        clock.advance(seconds=61)
        assert jobs.reap(session, job.id, services.clock() - STALE, services.settings, services.clock()) == "failed"
        assert job.error_code == "time_limit"


def test_a_silent_job_that_was_cancelled_ends_cancelled(services: Services, clock: object) -> None:
    with services.database.write() as session:
        job = claimed(services, session)
        jobs.cancel(session, job, services.clock())
        clock.advance(seconds=61)
        assert jobs.reap(session, job.id, services.clock() - STALE, services.settings, services.clock()) == "cancelled"


def test_a_graceful_return_costs_no_attempt(services: Services) -> None:
    with services.database.write() as session:
        job = claimed(services, session)
        assert jobs.requeue_of_worker(session, "another", services.clock()) == 0
        assert jobs.requeue_of_worker(session, "w", services.clock()) == 1
        assert (job.status, job.max_attempts, job.claimed_by, job.dispatched_at) == ("queued", 4, None, None)


def test_equal_input_is_one_job_until_it_fails(services: Services) -> None:
    key = input_hash("replay", {"a": 1}, "v")
    with services.database.write() as session:
        first = jobs.create(session, made_job(services, input_hash=key))
        second = jobs.create(session, made_job(services, input_hash=key))
        assert (first.created, second.created) == (True, False)
        assert second.job.id == first.job.id
        job = jobs.claim(session, first.job.id, "w", services.clock())
        assert job is not None
        jobs.fail(session, job, 1, Failure("internal", "broken"), services.clock())
        assert jobs.create(session, made_job(services, input_hash=key)).created


def plan_of(services: Services, session: Session, count: int) -> tuple[Job, list[Job]]:
    parent = made_job(services, "plan", children=count, remaining=count)
    children = [made_job(services, "plan_candidate") for _ in range(count)]
    jobs.create(session, parent, children)
    return parent, children


def test_a_plan_runs_with_its_first_child_and_ends_with_its_aggregation(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        parent, children = plan_of(services, session, 2)
        assert jobs.claim(session, parent.id, "w", now) is None, "a plan itself is run by nobody"
        for child in children:
            assert jobs.claim(session, child.id, "w", now) is not None
            assert parent.status == "running"
            jobs.finish_child(session, child, 1, "{}", "v", services.settings, now)
        aggregation = session.scalars(select(Job).where(Job.kind == "plan_report")).one()
        assert jobs.claim(session, aggregation.id, "w", now) is not None
        assert jobs.finish_plan(session, aggregation, 1, now).id == parent.id
        assert (parent.status, parent.progress) == ("succeeded", 1.0)
        assert rows.list_results(session, parent.id) == []


def test_a_failed_child_fails_the_plan_and_cancels_the_rest(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        parent, (first, second, third) = plan_of(services, session, 3)
        assert jobs.claim(session, first.id, "w", now)
        assert jobs.claim(session, second.id, "w", now)
        jobs.fail(session, first, 1, Failure("workload.empty", "nothing to replay"), now)
        session.refresh(third)
        assert (parent.status, parent.error_code) == ("failed", "workload.empty")
        assert third.status == "cancelled"
        assert jobs.beat(session, second.id, 1, 0.5, now).cancelled
        with pytest.raises(LostJobError):
            jobs.finish_child(session, second, 1, "{}", "v", services.settings, now)


def test_a_stopped_worker_gives_back_no_child_of_an_ended_plan(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        parent, (first, second) = plan_of(services, session, 2)
        assert jobs.claim(session, first.id, "w", now)
        assert jobs.claim(session, second.id, "w", now)
        jobs.cancel(session, parent, now)
        assert jobs.requeue(session, first, 1, now) == "cancelled"
        assert jobs.requeue_of_worker(session, "w", now) == 1
        assert {first.status, second.status} == {"cancelled"}
        assert rows.list_undispatched(session, now, 0) == []


def test_a_cancel_before_the_return_of_a_job_ends_it(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        job = claimed(services, session)
        jobs.cancel(session, job, now)
        assert jobs.requeue(session, job, 1, now) == "cancelled"
        assert job.status == "cancelled"


def test_a_queued_child_of_an_ended_plan_ends_with_its_message(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        parent, (child,) = plan_of(services, session, 1)
        rows.update_where(session, parent.id, [], {"status": "failed"})
        assert jobs.claim(session, child.id, "w", now) is None
        assert child.status == "cancelled"


def test_a_runner_that_lost_its_job_to_a_cancel_ends_it(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        _, (first, second) = plan_of(services, session, 2)
        assert jobs.claim(session, first.id, "w", now)
        assert jobs.claim(session, second.id, "w", now)
        assert not jobs.end_lost(session, second, 1, now), "nobody told it to stop"
        jobs.fail(session, first, 1, Failure("workload.empty", "nothing to replay"), now)
        assert not jobs.end_lost(session, second, 2, now), "another attempt's"
        assert jobs.end_lost(session, second, 1, now)
        assert second.status == "cancelled"


def test_a_failure_is_told_without_what_a_database_refuses(services: Services) -> None:
    with services.database.write() as session:
        job = claimed(services, session)
        faults = (FieldError("no \ud800", field="a\0b", line=3), FieldError("x", column="\udc00"))
        jobs.fail(session, job, 1, Failure("trace.x", "columns: a\ud800b, \0"), services.clock())
        assert job.error_detail == r"columns: a\ud800b, \x00"
        other = claimed(services, session)
        jobs.fail(session, other, 1, Failure("trace.x", "y", faults), services.clock())
        assert other.errors is not None
        assert other.errors[0] == {"detail": r"no \ud800", "field": r"a\x00b", "line": 3}
        assert other.errors[1]["column"] == r"\udc00"


def test_a_job_never_leaves_its_end(services: Services) -> None:
    now = services.clock()
    with services.database.write() as session:
        job = claimed(services, session)
        jobs.finish(session, job, 1, now)
        jobs.cancel(session, job, now)
        assert job.status == "succeeded"
        assert jobs.claim(session, job.id, "w", now) is None
        assert not jobs.end_cancelled(session, job, 1, now)


def test_unclaimed_jobs_are_sent_again_with_growing_waits(services: Services, clock: object) -> None:
    with services.database.write() as session:
        job = add(services, session)
        assert rows.list_undispatched(session, services.clock(), 60) == [(job.id, False)]
        rows.mark_dispatched(session, [job.id], services.clock())
        waited = []
        for wait_s in (60, 120, 240, 480, 480):
            clock.advance(seconds=wait_s)
            assert rows.list_undispatched(session, services.clock(), 60) == []
            clock.advance(seconds=1)
            if rows.list_undispatched(session, services.clock(), 60):
                waited.append(wait_s)
            rows.mark_dispatched(session, [job.id], services.clock())
        assert waited == [60, 120, 240, 480, 480]
