"""Schedules with a clock that stands still."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from ingest_reports import ingest_report
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from models.errors import ConflictError, InvalidError, LimitError, NotFoundError, VersionError
from models.ids import new_id
from models.paging import PageRequest
from models.principal import Principal
from models.services import Services
from models.tables import Blob, Job, Schedule, Trace
from models.use_cases import schedules
from models.use_cases.schedule_notes import source_note
from models.use_cases.schedules import ScheduleChange
from replay.errors import SpecError
from replay.specs import PlanSpec, parse_objective

PLAN = PlanSpec(model="meta-llama/Llama-3.1-8B", gpus=("H100-SXM",), objectives=(parse_objective("ttft_p99=2s"),))


def add_trace(services: Services, principal: Principal, stream: str, sha256: str) -> str:
    now = services.clock()
    trace_id = new_id("trc")
    with services.database.write() as session:
        session.add(Blob(sha256=sha256, bytes=1, last_used_at=now))
        session.flush()
        session.add(
            Trace(
                id=trace_id,
                tenant_id=principal.tenant_id,
                name="t",
                stream=stream,
                status="ready",
                source_sha256=sha256,
                source_bytes=1,
                options={},
                content_key=sha256,
                ingest_job_id=new_id("job"),
                canonical_sha256=sha256,
                canonical_bytes=1,
                report=ingest_report(),
                created_at=now,
                updated_at=now,
            )
        )
    return trace_id


def create(services: Services, principal: Principal, **values: object) -> Schedule:
    given = {"name": "s", "cron": "0 6 * * *", "zone": "UTC", "plan": PLAN, "stream": "prod", **values}
    with services.database.write() as session:
        return schedules.create_schedule(session, principal, services, **given)


def runs(services: Services, principal: Principal, schedule: Schedule) -> list[schedules.RunDetail]:
    with services.database.read() as session:
        return schedules.list_runs(session, principal, schedule.id, PageRequest()).items


def test_each_occurrence_runs_on_the_newest_trace_of_the_stream(
    services: Services, principal: Principal, clock: object
) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    schedule = create(services, principal)
    assert schedule.next_run_at == datetime(2026, 1, 6, 6, 0, tzinfo=UTC)
    assert schedules.run_due(services) == 0
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    assert schedules.run_due(services) == 0
    newest = add_trace(services, principal, "prod", "2" * 64)
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    second, first = runs(services, principal, schedule)
    assert [first.run.scheduled_for.day, second.run.scheduled_for.day] == [6, 7]
    assert first.job is not None
    assert second.job is not None
    assert second.job.trace_id == newest
    assert second.job.id != first.job.id
    assert second.job.schedule_id == schedule.id


def test_missed_runs_collapse_into_one(services: Services, principal: Principal, clock: object) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    schedule = create(services, principal)
    clock.advance(days=10)
    assert schedules.run_due(services) == 1
    (only,) = runs(services, principal, schedule)
    assert only.run.missed == 9
    assert only.run.scheduled_for == datetime(2026, 1, 15, 6, 0, tzinfo=UTC)
    with services.database.read() as session:
        assert session.get_one(Schedule, schedule.id).next_run_at == datetime(2026, 1, 16, 6, 0, tzinfo=UTC)


def test_a_run_that_cannot_start_says_why(services: Services, principal: Principal, clock: object) -> None:
    schedule = create(services, principal)
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    (only,) = runs(services, principal, schedule)
    assert (only.job, only.run.error_code) == (None, "schedule.no_trace")
    with services.database.write() as session, pytest.raises(ConflictError) as caught:
        schedules.run_now(session, principal, services, schedule.id)
    assert caught.value.errors[0].field == "stream"
    with services.database.read() as session:
        assert "no ready trace yet" in str(source_note(session, schedule))


def test_a_run_says_that_newer_data_could_not_be_read_or_did_not_come(
    services: Services, principal: Principal, clock: object
) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    schedule = create(services, principal)
    with services.database.read() as session:
        assert source_note(session, schedule) is None
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    clock.advance(hours=1)
    broken = add_trace(services, principal, "prod", "2" * 64)
    with services.database.write() as session:
        session.get_one(Trace, broken).status = "failed"
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    second, first = runs(services, principal, schedule)
    assert first.note is None
    assert second.note == (
        "a newer trace of the stream could not be read (t); nothing new since an earlier run: this is its answer"
    )
    assert first.report_id is None


def test_an_unchanged_input_finds_the_job_of_the_run_before(
    services: Services, principal: Principal, clock: object
) -> None:
    trace_id = add_trace(services, principal, "prod", "1" * 64)
    schedule = create(services, principal, stream=None, trace_id=trace_id)
    for _ in range(2):
        clock.advance(days=1)
        assert schedules.run_due(services) == 1
    assert len({detail.job.id for detail in runs(services, principal, schedule) if detail.job}) == 1
    with services.database.read() as session:
        assert len(session.scalars(select(Job).where(Job.kind == "plan")).all()) == 1


def test_pause_resume_and_run_now(services: Services, principal: Principal, clock: object) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    schedule = create(services, principal)

    def change(**values: object) -> Schedule:
        with services.database.write() as session:
            return schedules.update_schedule(
                session,
                principal,
                services,
                schedule.id,
                ScheduleChange(**values),
            )

    assert change(status="paused").next_run_at is None
    clock.advance(days=5)
    assert schedules.run_due(services) == 0
    with services.database.write() as session:
        detail = schedules.run_now(session, principal, services, schedule.id)
    assert (detail.run.trigger, detail.job is not None) == ("manual", True)
    assert change(status="active").next_run_at == datetime(2026, 1, 11, 6, 0, tzinfo=UTC)
    assert change(cron="0 7 * * *").next_run_at == datetime(2026, 1, 11, 7, 0, tzinfo=UTC)
    assert change(zone="Europe/Berlin").next_run_at == datetime(2026, 1, 11, 6, 0, tzinfo=UTC)


def test_an_update_needs_the_version_that_was_read(services: Services, principal: Principal) -> None:
    schedule = create(services, principal)
    with services.database.write() as session:
        schedules.update_schedule(session, principal, services, schedule.id, ScheduleChange(name="a"), version=1)
    with services.database.write() as session, pytest.raises(VersionError):
        schedules.update_schedule(session, principal, services, schedule.id, ScheduleChange(name="b"), version=1)


def test_bad_schedules_are_refused_at_once(services: Services, principal: Principal) -> None:
    for values, error in (
        ({"cron": "whenever"}, InvalidError),
        ({"zone": "Mars/Olympus"}, InvalidError),
        ({"stream": None}, InvalidError),
        ({"trace_id": new_id("trc")}, InvalidError),
        ({"stream": None, "trace_id": new_id("trc")}, NotFoundError),
        ({"name": ""}, InvalidError),
        ({"plan": PLAN.model_copy(update={"gpus": ("H1000",)})}, SpecError),
    ):
        with pytest.raises(error):
            create(services, principal, **values)


def test_deletion_keeps_jobs(services: Services, principal: Principal) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    schedule = create(services, principal)
    with services.database.write() as session:
        detail = schedules.run_now(session, principal, services, schedule.id)
        schedules.delete_schedule(session, principal, services, schedule.id)
    assert detail.job is not None
    with services.database.read() as session:
        assert session.get(Job, detail.job.id) is not None
        with pytest.raises(NotFoundError):
            schedules.get_schedule(session, principal, schedule.id)


def spoil(services: Services, schedule: Schedule, **values: object) -> None:
    """What another release may have stored."""
    with services.database.write() as session:
        session.execute(update(Schedule).where(Schedule.id == schedule.id).values(**values))


def test_a_schedule_that_cannot_be_read_holds_up_no_other(
    services: Services, principal: Principal, clock: object
) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    broken = create(services, principal, name="broken", cron="0 1 * * *")
    fine = create(services, principal, name="fine")
    spoil(services, broken, plan={"name": "of another release"})
    clock.advance(days=1)
    assert schedules.run_due(services) == 2
    (failed,) = runs(services, principal, broken)
    assert (failed.job, failed.run.error_code) == (None, "internal")
    assert broken.id in (failed.run.error_detail or "")
    (started,) = runs(services, principal, fine)
    assert started.job is not None
    assert schedules.run_due(services) == 0, "the broken one waits for its next time"


@pytest.mark.parametrize(("values", "code"), [({"cron": "?"}, "schedule.cron"), ({"zone": "Mars/X"}, "schedule.zone")])
def test_a_timetable_that_cannot_be_read_is_paused(
    services: Services, principal: Principal, clock: object, values: dict[str, str], code: str
) -> None:
    schedule = create(services, principal)
    spoil(services, schedule, **values)
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    (only,) = runs(services, principal, schedule)
    assert only.run.error_code == code
    with services.database.read() as session:
        stored = session.get_one(Schedule, schedule.id)
        assert (stored.status, stored.next_run_at) == ("paused", None)


def test_a_failure_of_the_database_holds_up_no_other(
    services: Services, principal: Principal, clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_trace(services, principal, "prod", "1" * 64)
    first, second = create(services, principal, cron="0 1 * * *"), create(services, principal)
    start = schedules._start

    def fail(session: object, who: object, made: object, schedule: Schedule, request_id: object) -> Job:
        if schedule.id == first.id:
            raise OperationalError("x", {}, Exception())
        return start(session, who, made, schedule, request_id)

    monkeypatch.setattr(schedules, "_start", fail)
    clock.advance(days=1)
    assert schedules.run_due(services) == 1
    assert runs(services, principal, first) == []
    assert len(runs(services, principal, second)) == 1
    monkeypatch.undo()
    assert schedules.run_due(services) == 1, "the next tick tries again"


@pytest.mark.parametrize(
    ("cron", "days", "newest"),
    [
        ("0 6 * * *", 10, datetime(2026, 1, 15, 6, tzinfo=UTC)),
        ("0 6 1-8 2 *", 40, datetime(2026, 2, 8, 6, tzinfo=UTC)),
    ],
)
def test_of_very_many_missed_runs_the_newest_is_run(
    services: Services,
    principal: Principal,
    clock: object,
    monkeypatch: pytest.MonkeyPatch,
    cron: str,
    days: int,
    newest: datetime,
) -> None:
    monkeypatch.setattr(schedules, "MAX_MISSED", 3)
    schedule = create(services, principal, cron=cron)
    clock.advance(days=days)
    assert schedules.run_due(services) == 1
    (only,) = runs(services, principal, schedule)
    assert (only.run.missed, only.run.scheduled_for) == (3, newest)


def test_a_tenant_has_so_many_schedules(services: Services, principal: Principal) -> None:
    strict = replace(services, settings=services.settings.model_copy(update={"max_schedules": 1}))
    create(strict, principal)
    with pytest.raises(LimitError) as refused:
        create(strict, principal)
    assert refused.value.code == "limit.schedules"


@pytest.mark.parametrize("zone", ["localtime", "posixrules", "right/UTC", "posix/Europe/Berlin"])
def test_zones_that_differ_by_host_are_refused(services: Services, principal: Principal, zone: str) -> None:
    with pytest.raises(InvalidError, match="unknown time zone"):
        create(services, principal, zone=zone)
