"""The few statements that SQLite and PostgreSQL spell differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from models.tables import Base


def _insert(session: Session, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def insert_or_ignore(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Inserts a row unless a unique key forbids it; whether it was inserted.

    On PostgreSQL it first waits for another transaction that is inserting the same key.
    """
    # RETURNING, not rowcount: of an INSERT on PostgreSQL SQLAlchemy reports -1.
    key = inspect(table).primary_key
    inserted = session.execute(_insert(session, table).values(values).on_conflict_do_nothing().returning(*key))
    return inserted.first() is not None


def upsert(session: Session, table: type[Base], values: dict[str, Any], keys: Sequence[str]) -> None:
    """Inserts a row, or updates the one of the same ``keys`` (the primary key or a unique constraint) to ``values``."""
    statement = _insert(session, table).values(values)
    update = {name: statement.excluded[name] for name in values if name not in keys}
    session.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=update))
