"""Alembic's environment: online only, on the settings' database."""

from __future__ import annotations

from alembic import context
from sqlalchemy import event, text

from models.database import make_engine
from models.tables import Base

UPGRADE_LOCK = 0x63617072
"""Key of the PostgreSQL advisory lock that lets one migration run at a time."""


def run() -> None:
    """Runs the asked-for migrations in one transaction."""
    engine = make_engine(context.config.attributes["settings"])
    sqlite = engine.dialect.name == "sqlite"
    if sqlite:
        # A table that a batch rewrites is dropped and renamed: rows that point to it must not follow. Within a
        # transaction SQLite ignores the pragma, so it is set as the driver connects.
        event.listen(engine, "connect", lambda driver, _record: driver.execute("PRAGMA foreign_keys=OFF").close())
    try:
        with engine.execution_options(begin="IMMEDIATE").connect() as connection:
            context.configure(
                connection=connection, target_metadata=Base.metadata, render_as_batch=sqlite, compare_type=True
            )
            with connection.begin():
                if not sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
                context.run_migrations()
    finally:
        engine.dispose()


run()
