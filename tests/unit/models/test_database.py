"""What every session must hold, whatever runs in it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, StatementError

from models.database import ring_after_commit
from models.ids import new_id
from models.services import Services
from models.tables import Tenant


class Bell:
    def __init__(self) -> None:
        self.rung: list[tuple[str, str]] = []

    def ring(self, jobs: list[tuple[str, str]]) -> None:
        self.rung += jobs

    def close(self) -> None:
        pass


def test_naive_datetimes_are_refused(services: Services) -> None:
    tenant = Tenant(id=new_id("tnt"), name="x", created_at=datetime(2026, 1, 1))
    with pytest.raises(StatementError, match="naive"), services.database.write() as session:
        session.add(tenant)


def test_datetimes_come_back_in_utc(services: Services) -> None:
    tenant_id = new_id("tnt")
    berlin = datetime(2026, 7, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    with services.database.write() as session:
        session.add(Tenant(id=tenant_id, name="x", created_at=berlin))
    with services.database.read() as session:
        assert session.get_one(Tenant, tenant_id).created_at == datetime(2026, 7, 1, 12, 0, tzinfo=UTC)


def test_sqlite_is_opened_as_it_must_be(services: Services) -> None:
    with services.database.read() as session:
        pragmas = {
            name: session.execute(text(f"PRAGMA {name}")).scalar_one() for name in ("journal_mode", "foreign_keys")
        }
        assert pragmas == {"journal_mode": "wal", "foreign_keys": 1}
        assert session.execute(text("PRAGMA busy_timeout")).scalar_one() == 5000
        assert session.execute(text("PRAGMA synchronous")).scalar_one() == 1


def test_references_are_enforced(services: Services) -> None:
    from models.tables import ApiKey

    key = ApiKey(
        id="key_1",
        tenant_id="nobody",
        name="",
        secret_sha256="",
        scopes=[],
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    with pytest.raises(IntegrityError), services.database.write() as session:
        session.add(key)


def test_the_bell_rings_after_the_commit_and_never_after_a_rollback(services: Services) -> None:
    bell = services.database.doorbell = Bell()
    with services.database.write() as session:
        ring_after_commit(session, "job_1", "replay")
        assert bell.rung == []
    assert bell.rung == [("job_1", "replay")]

    def fail() -> None:
        with services.database.write() as session:
            ring_after_commit(session, "job_2", "replay")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert bell.rung == [("job_1", "replay")]


def test_ids_sort_by_time_and_have_one_form() -> None:
    ids = [new_id("job") for _ in range(50)]
    assert ids == sorted(ids)
    assert all(re.fullmatch(r"job_[0-9a-f]{32}", one) for one in ids)


def test_errors_do_not_tell_what_was_to_be_written(services: Services) -> None:
    with pytest.raises(IntegrityError) as refused, services.database.write() as session:
        session.execute(text("INSERT INTO api_keys (id) VALUES (:id)"), {"id": "key_of_somebody"})
    assert "key_of_somebody" not in str(refused.value)
