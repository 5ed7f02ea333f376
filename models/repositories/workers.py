"""The workers' heartbeats."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from models.dialect import upsert
from models.tables import Worker


def register(
    session: Session,
    *,
    name: str,
    queues: str,
    concurrency: int,
    code_version: str,
    blob_probe_ok: bool | None,
    now: datetime,
) -> None:
    """A worker has started."""
    values = {
        "name": name,
        "queues": queues,
        "concurrency": concurrency,
        "code_version": code_version,
        "blob_probe_ok": blob_probe_ok,
        "started_at": now,
        "heartbeat_at": now,
        "stopping_at": None,
    }
    upsert(session, Worker, values, ["name"])


def beat(session: Session, name: str, blob_probe_ok: bool | None, now: datetime) -> None:
    """A worker is alive."""
    session.execute(update(Worker).where(Worker.name == name).values(heartbeat_at=now, blob_probe_ok=blob_probe_ok))


def mark_stopping(session: Session, name: str, now: datetime) -> None:
    """A worker was told to stop; its job processes read this at their next heartbeat."""
    session.execute(update(Worker).where(Worker.name == name).values(stopping_at=now))


def remove(session: Session, name: str) -> None:
    """A worker has stopped."""
    session.execute(delete(Worker).where(Worker.name == name))


def remove_silent(session: Session, before: datetime) -> None:
    """Forgets workers that have not been heard of since ``before``."""
    session.execute(delete(Worker).where(Worker.heartbeat_at < before))


def list_live(session: Session, since: datetime) -> list[Worker]:
    """Workers heard of since ``since``."""
    return list(session.scalars(select(Worker).where(Worker.heartbeat_at >= since).order_by(Worker.name)))


def find(session: Session, name: str) -> Worker | None:
    """One worker."""
    return session.get(Worker, name, populate_existing=True)


def is_stopping(session: Session, name: str) -> bool:
    """Whether the worker was told to stop."""
    return session.scalars(select(Worker.stopping_at).where(Worker.name == name)).one_or_none() is not None
