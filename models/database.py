"""Engine and sessions: how each database is opened, and what happens around a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session, sessionmaker

from models.settings import Settings

_RING = "ring"


class Doorbell(Protocol):
    """Tells the workers that jobs wait; may fail silently, since the dispatcher repeats it."""

    def ring(self, jobs: Sequence[tuple[str, str]]) -> None:
        """``(job id, queue)`` pairs; returns at once."""
        ...

    def close(self) -> None:
        """Stops the background sender."""
        ...


def ring_after_commit(session: Session, job_id: str, queue: str) -> None:
    """Has the doorbell rung for a job once this session has committed; a rollback forgets it."""
    session.info.setdefault(_RING, []).append((job_id, queue))


class Database:
    """One engine and its sessions. ``write()`` commits at the end and then rings for new jobs; ``read()`` never writes.

    Nothing is connected to before the first session.
    """

    def __init__(self, settings: Settings, doorbell: Doorbell | None = None) -> None:
        self.doorbell = doorbell
        self.engine = make_engine(settings)
        self._read = sessionmaker(self.engine, expire_on_commit=False, autoflush=False)
        self._write = sessionmaker(self.engine.execution_options(begin="IMMEDIATE"), expire_on_commit=False)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session for one write transaction: committed at the end, rolled back on any error."""
        with self._write() as session:
            with session.begin():
                yield session
            rings: list[tuple[str, str]] = session.info.pop(_RING, [])
        if rings and self.doorbell is not None:
            self.doorbell.ring(rings)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading."""
        with self._read() as session:
            yield session

    def close(self) -> None:
        """Closes the doorbell and all connections."""
        if self.doorbell is not None:
            self.doorbell.close()
        self.engine.dispose()


def sqlite_file(settings: Settings) -> Path | None:
    """The file of an SQLite database; ``None`` for another one."""
    url = make_url(settings.resolved_database_url)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def make_engine(settings: Settings) -> Engine:
    """The engine for the settings' URL, SQLite or PostgreSQL."""
    url = make_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite":
        if (file := sqlite_file(settings)) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            url, pool_size=settings.db_pool_size, max_overflow=settings.db_max_overflow, hide_parameters=True
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        pool_size=settings.db_pool_size,
        max_overflow=settings.db_max_overflow,
        hide_parameters=True,  # errors go to logs and terminals; parameters hold hashes of keys
        pool_pre_ping=True,
        pool_timeout=10,
        connect_args={"connect_timeout": 5},
    )


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN is deferred: concurrent updates would be lost
    for pragma in ("journal_mode=WAL", "busy_timeout=5000", "foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN " + connection.get_execution_options().get("begin", "DEFERRED"))
