"""Concurrent claims, finishes and creations on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from stack import Stack

from models import jobs
from models.blobs import UploadWriter
from models.repositories import blobs as blob_rows
from models.repositories import jobs as job_rows
from models.repositories import traces as trace_rows
from models.tables import Job, Tenant, Trace
from models.use_cases import traces
from models.use_cases.traces import CreatedTrace
from replay.traces.options import IngestOptions

T = TypeVar("T")
THREADS = 8


def at_once(work: Callable[[int], T], threads: int = THREADS) -> list[T]:
    """Results of ``work(0) ... work(n - 1)``, begun at the same instant."""
    barrier = threading.Barrier(threads)
    results: dict[int, T] = {}
    errors: list[Exception] = []

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = work(index)
        except Exception as error:  # noqa: BLE001 - told to the test's thread
            errors.append(error)

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors
    return [results[index] for index in range(threads)]


def make(stack: Stack, kind: str = "replay", **values: object) -> Job:
    return jobs.new_job(
        tenant_id=stack.principal.tenant_id,
        kind=kind,
        spec={"schema_version": 1},
        code_version="v",
        settings=stack.settings,
        now=datetime.now(UTC),
        **values,
    )


def insert(stack: Stack, job: Job, children: Sequence[Job] = ()) -> jobs.StartedJob:
    with stack.services.database.write() as session:
        return jobs.create(session, job, list(children))


def claim(stack: Stack, job_id: str, worker: str) -> bool:
    with stack.services.database.write() as session:
        return jobs.claim(session, job_id, worker, datetime.now(UTC)) is not None


def test_one_of_many_claims_wins(data_stack: Stack) -> None:
    ids = [insert(data_stack, make(data_stack)).job.id for _ in range(5)]
    won = at_once(lambda index: [claim(data_stack, job_id, f"w{index}") for job_id in ids])
    assert [sum(column) for column in zip(*won, strict=True)] == [1] * 5
    with data_stack.services.database.read() as session:
        assert set(session.scalars(select(Job.attempt))) == {1}


def test_equal_requests_at_once_make_one_job(data_stack: Stack) -> None:
    started = at_once(lambda _: insert(data_stack, make(data_stack, input_hash="h" * 64)))
    assert sum(one.created for one in started) == 1
    assert len({one.job.id for one in started}) == 1


def test_the_last_children_at_once_make_one_aggregation(data_stack: Stack) -> None:
    parent = make(data_stack, "plan", children=THREADS, remaining=THREADS)
    children = [make(data_stack, "plan_candidate") for _ in range(THREADS)]
    insert(data_stack, parent, children)

    def finish(index: int) -> None:
        child_id = children[index].id
        with data_stack.services.database.write() as session:
            child = jobs.claim(session, child_id, f"w{index}", datetime.now(UTC))
        assert child is not None
        with data_stack.services.database.write() as session:
            now = datetime.now(UTC)
            jobs.finish_child(session, child, 1, f'{{"n":{index}}}', "v", data_stack.settings, now)

    at_once(finish)
    with data_stack.services.database.read() as session:
        assert session.get_one(Job, parent.id).remaining == 0
        aggregations = session.scalars(select(Job).where(Job.kind == "plan_report")).all()
        bodies = [row.body for row in job_rows.list_results(session, parent.id)]
    assert [one.parent_id for one in aggregations] == [parent.id]
    assert bodies == [f'{{"n":{index}}}' for index in range(THREADS)], "in candidate order, not in that of their ends"


def test_cancel_against_finishes_never_deadlocks(data_stack: Stack) -> None:
    """Whoever comes first: either all is cancelled, or the aggregation exists and is cancelled too."""
    for _ in range(5):
        parent = make(data_stack, "plan", children=4, remaining=4)
        children = [make(data_stack, "plan_candidate") for _ in range(4)]
        insert(data_stack, parent, children)
        for child in children:
            assert claim(data_stack, child.id, "w")

        def act(index: int, parent: Job = parent, children: Sequence[Job] = tuple(children)) -> None:
            with data_stack.services.database.write() as session:
                now = datetime.now(UTC)
                if index == 4:
                    jobs.cancel(session, session.get_one(Job, parent.id), now)
                    return
                try:
                    child = session.get_one(Job, children[index].id)
                    jobs.finish_child(session, child, 1, "{}", "v", data_stack.settings, now)
                except jobs.LostJobError:
                    session.rollback()

        at_once(act, 5)
        with data_stack.services.database.read() as session:
            assert session.get_one(Job, parent.id).status == "cancelled"
            live = select(func.count()).select_from(Job).where(Job.parent_id == parent.id, Job.status == "queued")
            assert session.scalars(live).one() == 0


def test_concurrent_read_modify_write_loses_nothing(data_stack: Stack) -> None:
    """SQLite's deferred transactions lost most of these; BEGIN IMMEDIATE and row locks lose none."""

    def add(_: int) -> None:
        for _ in range(10):
            with data_stack.services.database.write() as session:
                tenant = session.scalars(
                    select(Tenant).where(Tenant.id == data_stack.principal.tenant_id).with_for_update()
                ).one()
                tenant.max_live_jobs = (tenant.max_live_jobs or 0) + 1

    at_once(add)
    with data_stack.services.database.read() as session:
        assert session.get_one(Tenant, data_stack.principal.tenant_id).max_live_jobs == 10 * THREADS


@pytest.mark.timeout(60)
def test_a_reader_is_not_blocked_by_a_writer(data_stack: Stack) -> None:
    job = insert(data_stack, make(data_stack)).job
    with data_stack.services.database.write() as writing:
        jobs.claim(writing, job.id, "w", datetime.now(UTC))
        with data_stack.services.database.read() as reading:
            assert reading.get_one(Job, job.id).status == "queued"


@pytest.mark.timeout(60)
def test_an_ingest_cannot_end_while_another_upload_joins_it(data_stack: Stack) -> None:
    """The worker waits for the upload's commit, so the trace that joined the job is settled too."""
    services = data_stack.services
    first = upload_to(data_stack, None)
    assert claim(data_stack, first.job.id, "w")
    entered = threading.Event()

    def finish() -> None:
        with services.database.write() as session:
            now = datetime.now(UTC)
            entered.set()
            blob_rows.note_blob(session, "b" * 64, 1, now)
            jobs.finish(session, session.get_one(Job, first.job.id), 1, now)
            trace_rows.make_ready(session, first.job.id, "b" * 64, 1, {"requests": 1}, now)

    worker = threading.Thread(target=finish)
    with services.database.write() as session:
        joined = create_trace(session, data_stack, "weekly")
        assert joined.job.id == first.job.id
        worker.start()
        if session.get_bind().dialect.name == "postgresql":
            assert entered.wait(30)
            worker.join(0.5)  # long enough for a worker that does not wait to be done, and so to be found out
            assert worker.is_alive()
    worker.join()
    with services.database.read() as session:
        assert {trace.status for trace in session.scalars(select(Trace))} == {"ready"}


@pytest.mark.timeout(60)
def test_an_upload_is_not_deleted_under_another_that_is_the_same(data_stack: Stack) -> None:
    """The deletion waits for the upload's commit, and then sees the ingest that waits for the file."""
    services = data_stack.services
    first = upload_to(data_stack, None)
    with services.database.write() as session:
        now = datetime.now(UTC)
        blob_rows.note_blob(session, "b" * 64, 1, now)
        trace_rows.make_ready(session, first.job.id, "b" * 64, 1, {"requests": 1}, now)
    deleted: list[bool] = []
    deletion = threading.Thread(
        target=lambda: deleted.append(traces.delete_upload(services, first.trace.source_sha256))
    )
    with services.database.write() as session:
        second = create_trace(session, data_stack, None, IngestOptions(block_size=16))
        assert second.created
        deletion.start()
        deletion.join(0.5)  # long enough for one that does not wait to be done
        assert deletion.is_alive()
    deletion.join()
    assert deleted == [False]
    assert services.blobs.exists(first.trace.source_sha256)


def upload_to(stack: Stack, stream: str | None) -> CreatedTrace:
    with stack.services.database.write() as session:
        return create_trace(session, stack, stream)


def create_trace(
    session: Session, stack: Stack, stream: str | None, options: IngestOptions | None = None
) -> CreatedTrace:
    with UploadWriter(stack.settings.tmp_path, 1000) as writer:
        writer.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        return traces.create_trace(
            session,
            stack.principal,
            stack.services,
            writer.finish(),
            name="t",
            options=options or IngestOptions(),
            stream=stream,
        )
