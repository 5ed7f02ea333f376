"""One job from claim to end, in this process: what is stored, what is told, what is left behind."""

from __future__ import annotations

import io
import itertools
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from sqlalchemy import select
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.orm import Session

from models import jobs
from models.blobs import UploadWriter
from models.clock import utc_now
from models.errors import NotFoundError
from models.hashing import canonical_json
from models.jobs import LostJobError
from models.paging import PageRequest
from models.principal import Principal
from models.repositories import jobs as job_rows
from models.repositories import workers
from models.services import Services
from models.tables import Blob, Job, Report, Trace
from models.use_cases import plans, replays, reports, traces
from models.use_cases.jobs import get_job
from replay.errors import FieldError, SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.planning.document import parse_report
from replay.specs import DeploymentSpec, PlanSpec, ReplaySpec, parse_objective
from replay.traces.labels import tenant_label
from replay.traces.options import IngestOptions
from worker import execution, runner
from worker.execution import execute, failure_of
from worker.heartbeat import CancelledError, Heartbeat, StoppingError

MODEL, GPU = "meta-llama/Llama-3.1-8B", "H100-SXM"
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02d}.5000000,{400 + second},{10 + second}\n" for second in range(60)
)
PLAN = PlanSpec(name="p", model=MODEL, gpus=(GPU,), tp=(1, 2), objectives=(parse_objective("ttft_p99=2s"),))
REPLAY = ReplaySpec(deployment=DeploymentSpec(model=MODEL, gpu=GPU, replicas=2))


@pytest.fixture
def running(services: Services) -> Services:
    """Services with the real clock and quick heartbeats."""
    settings = services.settings.model_copy(update={"job_heartbeat_s": 0.02})
    return replace(services, settings=settings, clock=utc_now)


def upload(
    services: Services,
    principal: Principal,
    content: str = CSV,
    name: str = "t.csv",
    options: IngestOptions | None = None,
) -> traces.CreatedTrace:
    with UploadWriter(services.settings.tmp_path, 10**6) as writer:
        writer.write(content.encode())
        stored = writer.finish()
        with services.database.write() as session:
            return traces.create_trace(
                session, principal, services, stored, name=name, options=options or IngestOptions()
            )


def run_all(services: Services) -> list[str]:
    """Runs whatever is queued, in order of creation, until nothing is left."""
    outcomes = []
    while True:
        with services.database.read() as session:
            waiting = job_rows.list_undispatched(session, services.clock(), 0)
        if not waiting:
            return outcomes
        outcomes.append(execute(services, waiting[0][0], "w"))


def job_of(services: Services, job_id: str) -> Job:
    with services.database.read() as session:
        return session.get_one(Job, job_id)


def report_of(session: Session, principal: Principal, job_id: str) -> Report:
    return reports.get_report(session, principal, get_job(session, principal, job_id).report_id or "")


def ready(services: Services, principal: Principal) -> str:
    created = upload(services, principal)
    assert execute(services, created.job.id, "w") == "succeeded"
    return created.trace.id


def leftovers(services: Services) -> list[Path]:
    folder = services.settings.tmp_path
    return list(folder.iterdir()) if folder.exists() else []


def test_an_ingest_makes_the_trace_ready(running: Services, principal: Principal) -> None:
    trace_id = ready(running, principal)
    with running.database.read() as session:
        trace = session.get_one(Trace, trace_id)
    assert trace.status == "ready"
    assert trace.report is not None
    assert (trace.report["format"], trace.report["requests"]) == ("azure-llm-2023", 60)
    with running.blobs.open(trace.canonical_sha256 or "") as file:
        assert pl.read_parquet(io.BytesIO(file.read())).height == 60
    assert leftovers(running) == []


def test_an_ingest_ends_its_job_before_its_traces(
    running: Services, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper and an upload of the same file lock the job first: another order would deadlock."""
    created = upload(running, principal)
    make_ready, seen = execution.trace_rows.make_ready, []

    def note(session: Session, job_id: str, *outcome: object) -> None:
        seen.append(session.get_one(Job, job_id).status)
        make_ready(session, job_id, *outcome)

    monkeypatch.setattr(execution.trace_rows, "make_ready", note)
    assert execute(running, created.job.id, "w") == "succeeded"
    assert seen == ["succeeded"]


def test_odd_texts_in_json_keys_end_in_the_row(running: Services, principal: Principal) -> None:
    for content in (r'{"a\ud800b":1,"x":2}', r'{"a\u0000b":1,"x":2}'):
        created = upload(running, principal, content + "\n")
        assert execute(running, created.job.id, "w") == "failed"
        assert job_of(running, created.job.id).error_code == "trace.json"


def test_a_bad_trace_fails_with_its_faults(running: Services, principal: Principal) -> None:
    created = upload(running, principal, "when,what\n1,2\n")
    assert execute(running, created.job.id, "w") == "failed"
    job = job_of(running, created.job.id)
    assert job.error_code == "trace.unknown_columns"
    assert "when" in (job.error_detail or "")
    with running.database.read() as session:
        assert session.get_one(Trace, created.trace.id).status == "failed"
    assert leftovers(running) == []


def test_a_trace_is_mixed_in_as_on_the_command_line(running: Services, principal: Principal, tmp_path: Path) -> None:
    west = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{second},900,10\n" for second in range(40))
    base, created = ready(running, principal), upload(running, principal, west, "west.csv")
    assert execute(running, created.job.id, "w") == "succeeded"
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "west.csv").write_text(west)

    def mixed(trace: str) -> PlanSpec:
        part = {"trace": trace, "name": "west", "share": 0.5}
        return PlanSpec.model_validate({**PLAN.model_dump(), "tp": (1,), "transform": {"mix_with": [part]}, "seed": 5})

    with running.database.write() as session:
        started = plans.start_plan(session, principal, running, base, mixed(created.trace.id))
    assert run_all(running) == ["succeeded"] * 2
    with running.database.read() as session:
        report = report_of(session, principal, started.job.id)
    with reports.open_document(running, report) as file:
        stored = file.read().decode()
    file_spec = mixed(str(tmp_path / "west.csv"))
    local = runner.run_plan_locally(tmp_path / "t.csv", file_spec, shipped_catalogue(), IngestOptions(), threads=2)
    assert canonical_json(local).replace(str(tmp_path / "west.csv"), created.trace.id) == stored
    assert "requests drawn with a share of 0.5 of 40, seed 5" in stored


def test_a_plan_gives_the_document_that_the_command_line_gives(
    running: Services, principal: Principal, tmp_path: Path
) -> None:
    trace_id = ready(running, principal)
    with running.database.write() as session:
        started = plans.start_plan(session, principal, running, trace_id, PLAN)
    assert run_all(running) == ["succeeded"] * 3
    with running.database.read() as session:
        report = report_of(session, principal, started.job.id)
    with reports.open_document(running, report) as file:
        stored = file.read()
    (tmp_path / "t.csv").write_text(CSV)
    local = runner.run_plan_locally(tmp_path / "t.csv", PLAN, shipped_catalogue(), IngestOptions(), threads=2)
    assert canonical_json(local).encode() == stored
    assert len(parse_report(local).recommendations) == 2  # type: ignore[union-attr]
    with pytest.raises(NotFoundError):
        reports.open_requests(running, report)


def test_a_replay_stores_its_document_and_its_requests(running: Services, principal: Principal) -> None:
    trace_id = ready(running, principal)
    with running.database.write() as session:
        started = replays.start_replay(session, principal, running, trace_id, REPLAY, name="r")
    assert run_all(running) == ["succeeded"]
    with running.database.read() as session:
        report = report_of(session, principal, started.job.id)
    with reports.open_requests(running, report) as file:
        table = pl.read_parquet(io.BytesIO(file.read()))
    assert table.height == 60
    assert table["status"].unique().to_list() == ["finished"]
    assert (table["last_token_ps"] >= table["first_token_ps"]).all()
    with running.database.write() as session:
        assert not replays.start_replay(session, principal, running, trace_id, REPLAY, name="r").created


def test_a_lost_attempt_stores_nothing(
    running: Services, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper gave the job to another worker while this one computed."""
    trace_id = ready(running, principal)
    with running.database.write() as session:
        job_id = replays.start_replay(session, principal, running, trace_id, REPLAY).job.id

    def lose(*_: object) -> None:
        with running.database.write() as session:
            job = session.get_one(Job, job_id)
            assert jobs.requeue(session, job, 1, running.clock())
            assert jobs.claim(session, job_id, "another", running.clock()) is not None

    monkeypatch.setattr(runner, "write_requests", lambda table, out: (out.write_bytes(b"x"), lose())[0])
    assert execute(running, job_id, "w") == "lost"
    job = job_of(running, job_id)
    assert (job.status, job.attempt, job.claimed_by) == ("running", 2, "another")
    with running.database.read() as session:
        assert reports.list_reports(session, principal, PageRequest()).items == []


@pytest.mark.parametrize(
    ("error", "outcome", "status", "code"),
    [
        (CancelledError("x"), "cancelled", "cancelled", None),
        (StoppingError("x"), "requeued", "queued", None),
        (LostJobError("x"), "lost", "running", None),
        (OperationalError("x", {}, Exception()), "lost", "running", None),
        (DataError("x", {}, Exception("secret")), "failed", "failed", "internal"),
        (SpecError("memory", "too small", [FieldError("no", field="gpu")]), "failed", "failed", "memory"),
        (MemoryError(), "failed", "failed", "out_of_memory"),
        (OSError(28, "No space left on device"), "failed", "failed", "storage"),
        (ZeroDivisionError("secret detail"), "failed", "failed", "internal"),
    ],
)
def test_every_end_is_in_the_row(
    running: Services,
    principal: Principal,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    outcome: str,
    status: str,
    code: str | None,
) -> None:
    created = upload(running, principal)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(runner, "ingest_file", fail)
    assert execute(running, created.job.id, "w") == outcome
    job = job_of(running, created.job.id)
    assert (job.status, job.error_code) == (status, code)
    assert "secret" not in (job.error_detail or "")
    assert leftovers(running) == []


def test_internal_errors_name_the_job_and_nothing_else() -> None:
    failure = failure_of(RuntimeError("/srv/secret/path"), "job_1")
    assert failure.code == "internal"
    assert "job_1" in failure.detail
    assert "secret" not in failure.detail


def claimed(services: Services, principal: Principal) -> Job:
    created = upload(services, principal)
    with services.database.write() as session:
        job = jobs.claim(session, created.job.id, "w", services.clock())
    assert job is not None
    return job


def spin(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.checkpoint(0.3)


@pytest.mark.timeout(30)
def test_a_checkpoint_obeys_cancels_and_shutdowns(running: Services, principal: Principal) -> None:
    job = claimed(running, principal)
    with running.database.write() as session:
        jobs.cancel(session, job, running.clock())
    with Heartbeat(running, job) as heartbeat, pytest.raises(CancelledError):
        spin(heartbeat)

    other = claimed_other(running, principal)
    with running.database.write() as session:
        now = running.clock()
        workers.register(
            session, name="w", queues="replay", concurrency=1, code_version="v", blob_probe_ok=None, now=now
        )
        workers.mark_stopping(session, "w", now)
    with Heartbeat(running, other) as heartbeat, pytest.raises(StoppingError):
        spin(heartbeat)
    with running.database.read() as session:
        assert session.get_one(Job, other.id).progress == 0.3


def claimed_other(services: Services, principal: Principal) -> Job:
    created = upload(services, principal, CSV + "2023-11-16 18:19:00.5000000,1,1\n")
    with services.database.write() as session:
        job = jobs.claim(session, created.job.id, "w", services.clock())
    assert job is not None
    return job


@pytest.mark.timeout(30)
def test_a_job_without_checkpoints_has_its_process_ended(running: Services, principal: Principal) -> None:
    impatient = replace(running, settings=running.settings.model_copy(update={"job_cancel_grace_s": 0.05}))
    job = claimed(impatient, principal)
    with impatient.database.write() as session:
        jobs.cancel(session, job, impatient.clock())
    ended: list[str] = []
    with Heartbeat(impatient, job, escalate=lambda: ended.append(job_of(impatient, job.id).status)):
        while not ended:
            pass
    assert ended[0] == "cancelled", "the row is in order before the process ends"


def test_a_message_for_nobody_is_dropped(running: Services) -> None:
    assert execute(running, "job_" + "0" * 32, "w") == "dropped"


def test_workers_of_two_versions_are_told_and_not_reused(
    running: Services, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_id = ready(running, principal)
    with running.database.write() as session:
        job_id = plans.start_plan(session, principal, running, trace_id, PLAN).job.id
    monkeypatch.setattr(execution, "code_version", lambda: "another")
    with running.database.read() as session:
        first = job_rows.list_children(session, job_id)[0]
    assert execute(running, first.id, "w") == "succeeded"
    monkeypatch.undo()
    assert run_all(running) == ["succeeded"] * 2
    with running.database.read() as session:
        report = session.scalars(select(Report)).one()
    with reports.open_document(running, report) as file:
        document = file.read().decode()
    assert "different versions" in document
    assert "another" in document
    with running.database.write() as session:
        assert plans.start_plan(session, principal, running, trace_id, PLAN).created


def test_an_ingest_replaces_ids_where_it_is_asked_to(running: Services, principal: Principal) -> None:
    content = "arrival_s,prompt_tokens,output_tokens,tenant\n" + "".join(f"{i},9,9,acme\n" for i in range(9))
    made = upload(running, principal, content, options=IngestOptions(ids="hash"))
    assert run_all(running) == ["succeeded"]
    with running.database.read() as session:
        trace = session.get_one(Trace, made.trace.id)
    assert trace.report is not None
    assert "acme" not in str(trace.report)
    table = pl.read_parquet(running.blobs.local_path(trace.canonical_sha256 or ""))
    assert set(table["tenant"]) == {tenant_label(running.settings.id_key(), "acme")}


@pytest.mark.parametrize("keep", [False, True])
def test_an_upload_is_deleted_once_it_is_read(running: Services, principal: Principal, *, keep: bool) -> None:
    settings = running.settings.model_copy(update={"keep_uploads": keep})
    made = upload(replace(running, settings=settings), principal)
    assert run_all(replace(running, settings=settings)) == ["succeeded"]
    assert running.blobs.exists(made.trace.source_sha256) is keep
    again = upload(running, principal, options=IngestOptions(max_rejected_share=0.5))
    assert run_all(running) == ["succeeded"], "read again with other options"
    assert not running.blobs.exists(again.trace.source_sha256)


def test_a_trace_is_ready_though_its_upload_cannot_be_deleted(
    running: Services, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_sha256: str) -> None:
        raise OSError

    made = upload(running, principal)
    monkeypatch.setattr(running.blobs, "delete", refuse)
    assert run_all(running) == ["succeeded"]
    with running.database.read() as session:
        assert session.get_one(Trace, made.trace.id).status == "ready"
        assert session.get_one(Blob, made.trace.source_sha256).bytes > 0, "a sweep finds it"


@pytest.mark.timeout(60)
def test_an_ingest_looks_for_a_cancel_all_the_time(tmp_path: Path) -> None:
    """CPU seconds between two looks, from the first byte to the report, over several spilled parts out of order."""
    source = tmp_path / "trace.csv"
    with source.open("w") as file:
        file.write("arrival_s,prompt_tokens,output_tokens\n")
        for block in range(8):
            at = (block * 5) % 8 * 200_000
            file.writelines(f"{at + i},{100 + i % 900},{10 + i % 90}\n" for i in range(200_000))
    looks = [time.process_time()]
    runner.ingest_file(
        source, tmp_path / "out.parquet", IngestOptions(), lambda _share: looks.append(time.process_time())
    )
    looks.append(time.process_time())
    assert max(b - a for a, b in itertools.pairwise(looks)) < 2
