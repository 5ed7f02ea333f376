"""Migrations on both databases: up, no difference to the tables, down, up again, and with data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, inspect, select

from models.blobs import UploadWriter, build_blob_store
from models.database import Database
from models.migrate import alembic_config, current_revision, downgrade, head_revision, upgrade_to_head
from models.principal import LOCAL_TENANT_ID
from models.settings import Settings
from models.tables import Blob, Job, Report, ReportCalibration, Tenant


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    if request.param == "sqlite":
        yield Settings(data_dir=tmp_path)
        return
    make: Callable[[], str] = request.getfixturevalue("postgres_database")
    yield Settings(data_dir=tmp_path, database_url=make())


def tables(settings: Settings) -> set[str]:
    database = Database(settings)
    try:
        return set(inspect(database.engine).get_table_names())
    finally:
        database.close()


def test_there_is_one_head(tmp_path: Path) -> None:
    assert len(ScriptDirectory.from_config(alembic_config(Settings(data_dir=tmp_path))).get_heads()) == 1


def test_up_down_and_up_again(settings: Settings) -> None:
    assert current_revision(settings) is None
    upgrade_to_head(settings)
    assert current_revision(settings) == head_revision(settings)
    command.check(alembic_config(settings))  # raises where the tables differ from the migrations
    downgrade(settings, "base")
    assert tables(settings) == {"alembic_version"}
    upgrade_to_head(settings)
    upgrade_to_head(settings)
    command.check(alembic_config(settings))


def test_an_upgrade_keeps_data(settings: Settings) -> None:
    upgrade_to_head(settings)
    database = Database(settings)
    now = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    try:
        with database.write() as session:
            assert session.get_one(Tenant, LOCAL_TENANT_ID).name == "local"
            session.add(
                Job(
                    id="job_1",
                    tenant_id=LOCAL_TENANT_ID,
                    kind="ingest",
                    status="queued",
                    spec={"schema_version": 1},
                    code_version="v",
                    max_attempts=3,
                    created_at=now,
                )
            )
        upgrade_to_head(settings)
        with database.read() as session:
            job = session.get_one(Job, "job_1")
        assert (job.created_at, job.spec) == (now, {"schema_version": 1})
        assert job.created_at.tzinfo is UTC
    finally:
        database.close()


def test_reports_of_before_are_listed_with_their_calibrations(settings: Settings) -> None:
    """By what their documents say; a request may name calibrations that its report did not need."""
    upgrade_to_head(settings)
    downgrade(settings, "0003")
    own = {"schema_version": 1, "plan": {"calibrations": [{"id": "user/1"}, {"id": "user/2"}]}}
    used = [("user/1", "measured"), ("h100_sxm/vllm/1+2", "transported")]
    missing = "0" * 64
    reports = {
        "rep_1": (own, stored(settings, used)),
        "rep_2": (own, stored(settings, used[1:])),
        "rep_3": ({"schema_version": 1, "replay": {"calibrations": []}}, missing),
        "rep_4": (own, missing),
    }
    database = Database(settings)
    now = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    try:
        with database.write() as session:
            for sha256 in {sha256 for _, sha256 in reports.values()}:
                session.add(Blob(sha256=sha256, bytes=1, last_used_at=now))
            session.flush()
            for id_, (spec, sha256) in reports.items():
                made = {"tenant_id": LOCAL_TENANT_ID, "created_at": now}
                session.add(
                    Job(
                        id=f"job_{id_}",
                        kind="plan",
                        status="succeeded",
                        spec=spec,
                        code_version="v",
                        max_attempts=3,
                        **made,
                    )
                )
                session.flush()
                row = Report(
                    id=id_, job_id=f"job_{id_}", kind="plan", name="", document_sha256=sha256, document_bytes=1, **made
                )
                session.add(row)
                session.flush()
        upgrade_to_head(settings)
        with database.read() as session:
            rows = session.scalars(select(ReportCalibration)).all()
        assert [(row.report_id, row.calibration) for row in rows] == [("rep_1", "user/1")]
    finally:
        database.close()


def stored(settings: Settings, used: list[tuple[str, str]]) -> str:
    """The hash of a report's document, now in the blob store."""
    calibrations = [{"calibration_id": id_, "provenance": provenance} for id_, provenance in used]
    with UploadWriter(settings.tmp_path, 10_000) as writer:
        writer.write(json.dumps({"provenance": {"calibrations": calibrations}}).encode())
        upload = writer.finish()
        build_blob_store(settings).put_file(upload.path, upload.sha256)
    return upload.sha256


def test_references_are_not_followed_while_sqlite_migrates(tmp_path: Path) -> None:
    """A table that a batch rewrites is dropped: with foreign keys on, what refers to its rows would go too."""
    seen: set[int] = set()

    def note(connection: Connection, *_: object) -> None:
        seen.add(connection.connection.driver_connection.execute("PRAGMA foreign_keys").fetchone()[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        command.upgrade(alembic_config(Settings(data_dir=tmp_path)), "head")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert seen == {0}
