"""Keys, scopes, tenants, limits and remembered answers."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import event, select

from models import limits
from models.errors import (
    ConflictError,
    ForbiddenError,
    IdempotencyError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from models.limits import MemoryRateLimiter
from models.paging import PageRequest
from models.principal import SCOPES, Principal
from models.services import Services
from models.tables import ApiKey, AuditEvent
from models.use_cases import catalogue, idempotency, jobs, keys
from models.use_cases.idempotency import StoredResponse
from replay.hardware.entries import Price


def issue(services: Services, principal: Principal, *scopes: str, life: timedelta | None = None) -> keys.IssuedKey:
    with services.database.write() as session:
        return keys.create_key(
            session, principal, services, name="ci", scopes=frozenset(scopes or SCOPES), expires_in=life
        )


def test_a_key_authenticates_its_tenant_and_scopes(services: Services, principal: Principal) -> None:
    issued = issue(services, principal, "reports:read")
    found = keys.authenticate(services, issued.text)
    assert found == Principal(principal.tenant_id, frozenset({"reports:read"}), issued.key.id)
    with pytest.raises(ForbiddenError):
        found.require("jobs:write")
    found.require("reports:read")


def test_the_secret_is_nowhere_in_the_database(services: Services, principal: Principal) -> None:
    issued = issue(services, principal)
    secret = issued.text.split("_", 2)[2]  # may hold underscores itself
    data = (services.settings.data_dir / "capreplay.db").read_bytes()
    wal = services.settings.data_dir / "capreplay.db-wal"
    assert secret.encode() not in data + (wal.read_bytes() if wal.exists() else b"")


def test_bad_keys_are_refused_alike(services: Services, principal: Principal, clock: object) -> None:
    expired = issue(services, principal, life=timedelta(hours=1))
    revoked = issue(services, principal)
    good = issue(services, principal)
    with services.database.write() as session:
        keys.revoke_key(session, principal, services, revoked.key.id)
    clock.advance(hours=2)
    wrong_secret = good.text[:-1] + ("A" if good.text[-1] != "A" else "B")
    unknown_id = "crp_" + "0" * 32 + good.text[36:]
    details = set()
    for text in (expired.text, revoked.text, wrong_secret, unknown_id, "", "crp_x_y", good.text + "\n", "é" * 80):
        with pytest.raises(UnauthorizedError) as refused:
            keys.authenticate(services, text)
        details.add(refused.value.detail)
    assert len(details) == 1
    assert keys.authenticate(services, good.text).key_id == good.key.id


def test_rotation_leaves_both_keys_for_the_grace_time(services: Services, principal: Principal, clock: object) -> None:
    old = issue(services, principal, "jobs:write")
    with services.database.write() as session:
        new = keys.rotate_key(session, principal, services, old.key.id, grace=timedelta(hours=1))
        assert new.key.scopes == ["jobs:write"]
    keys.authenticate(services, old.text)
    clock.advance(hours=1)
    with pytest.raises(UnauthorizedError):
        keys.authenticate(services, old.text)
    keys.authenticate(services, new.text)
    with services.database.write() as session, pytest.raises(ConflictError):
        keys.rotate_key(session, principal, services, old.key.id)


def test_last_use_is_noted_at_most_once_a_minute(services: Services, principal: Principal, clock: object) -> None:
    issued = issue(services, principal)
    first = services.clock()
    keys.authenticate(services, issued.text)
    clock.advance(seconds=59)
    keys.authenticate(services, issued.text)
    with services.database.read() as session:
        assert session.get_one(ApiKey, issued.key.id).last_used_at == first


def test_key_changes_leave_audit_rows_without_secrets(services: Services, principal: Principal) -> None:
    issued = issue(services, principal)
    with services.database.write() as session:
        keys.revoke_key(session, principal, services, issued.key.id)
    with services.database.read() as session:
        events = list(session.scalars(select(AuditEvent).order_by(AuditEvent.id)))
    assert [event.action for event in events] == ["key.create", "key.revoke"]
    assert issued.text[36:] not in json.dumps([event.detail for event in events])


def test_unknown_scopes_are_refused(services: Services, principal: Principal) -> None:
    for scopes in (frozenset({"root"}), frozenset()):
        with services.database.write() as session, pytest.raises(InvalidError):
            keys.create_key(session, principal, services, name="x", scopes=scopes)


def test_another_tenants_ids_do_not_exist(services: Services, principal: Principal) -> None:
    issued = issue(services, principal)
    with services.database.write() as session:
        other = Principal(keys.create_tenant(session, services, "other").id, SCOPES)
    with services.database.write() as session:
        with pytest.raises(NotFoundError):
            keys.get_key(session, other, issued.key.id)
        with pytest.raises(NotFoundError):
            keys.revoke_key(session, other, services, issued.key.id)
        with pytest.raises(NotFoundError):
            jobs.get_job(session, other, "job_" + "0" * 32)
        assert keys.list_keys(session, other, PageRequest()).items == []


def test_an_equal_repeat_gets_the_first_answer(services: Services, principal: Principal, clock: object) -> None:
    answer = StoredResponse(202, {"Location": "/v1/jobs/job_1"}, '{"id":"job_1"}')
    with services.database.write() as session:
        assert idempotency.begin(session, principal, services, "k", "a" * 64) is None
        with pytest.raises(ConflictError):
            idempotency.begin(session, principal, services, "k", "a" * 64)
        idempotency.finish(session, principal, "k", answer)
    with services.database.write() as session:
        assert idempotency.begin(session, principal, services, "k", "a" * 64) == answer
        with pytest.raises(IdempotencyError):
            idempotency.begin(session, principal, services, "k", "b" * 64)
        with pytest.raises(InvalidError):
            idempotency.begin(session, principal, services, "", "b" * 64)
    clock.advance(hours=25)
    with services.database.write() as session:
        assert idempotency.begin(session, principal, services, "k", "b" * 64) is None


def test_a_failed_request_leaves_no_answer(services: Services, principal: Principal) -> None:
    def fail() -> None:
        with services.database.write() as session:
            idempotency.begin(session, principal, services, "k", "a" * 64)
            raise RuntimeError("the route failed")

    with pytest.raises(RuntimeError):
        fail()
    with services.database.write() as session:
        assert idempotency.begin(session, principal, services, "k", "b" * 64) is None


def test_the_rate_limit_counts_by_minute_and_key() -> None:
    now = [120.0]
    limiter = MemoryRateLimiter(lambda: now[0])
    assert [limiter.hit("a", 2) for _ in range(3)] == [None, None, 60]
    assert limiter.hit("b", 2) is None
    now[0] = 175.0
    assert limiter.hit("a", 2) == 5
    now[0] = 180.0
    assert limiter.hit("a", 2) is None


def test_a_tenants_own_price_is_its_own(services: Services, principal: Principal) -> None:
    price = Price(
        id="ours",
        provider="us",
        gpu="h100",
        region="here",
        term="on_demand",
        usd_per_instance_hour=1,
        date="2026-01-01",
        source="contract",
    )
    with services.database.write() as session:
        assert catalogue.put_price(session, principal, services, price)
        assert not catalogue.put_price(session, principal, services, price)
        own = catalogue.catalogue_for(session, principal)
        assert next(p for p in own.prices if p.id == "ours").gpu == "H100-SXM"
        other = Principal(keys.create_tenant(session, services, "other").id, SCOPES)
        assert all(p.id != "ours" for p in catalogue.catalogue_for(session, other).prices)
        assert catalogue.own_keys(session, principal)["price"] == {"ours"}
        with pytest.raises(NotFoundError):
            catalogue.delete_entry(session, other, services, "price", "ours")
        catalogue.delete_entry(session, principal, services, "price", "ours")
        assert catalogue.own_keys(session, principal)["price"] == frozenset()


def test_a_flood_of_keys_does_not_free_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_KEYS", 3)
    limiter = MemoryRateLimiter(lambda: 0.0)
    assert limiter.hit("busy", 1) is None
    for number in range(20):
        limiter.hit(f"other{number}", 1)
        assert limiter.hit("busy", 1) == 60


def test_a_key_of_no_tenant_or_of_no_end_is_refused(services: Services, principal: Principal) -> None:
    scopes = frozenset({"reports:read"})
    with services.database.write() as session, pytest.raises(NotFoundError, match="tnt_nope"):
        keys.create_key(session, Principal("tnt_nope", SCOPES), services, name="x", scopes=scopes)
    for life in (timedelta(0), timedelta.max):
        with services.database.write() as session, pytest.raises(InvalidError):
            keys.create_key(session, principal, services, name="x", scopes=scopes, expires_in=life)


def test_a_rotation_locks_the_key(services: Services, principal: Principal) -> None:
    """Two at once would each leave a new key."""
    issued = issue(services, principal)
    locked = []
    with services.database.write() as session:
        event.listen(session, "do_orm_execute", lambda state: locked.append(state.statement._for_update_arg))
        keys.rotate_key(session, principal, services, issued.key.id)
    assert locked[0] is not None
