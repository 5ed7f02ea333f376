"""Engine and sessions: how each database is opened, and what happens around a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy.orm import Session

from models.settings import Settings


class Doorbell(Protocol):
    """Tells the workers that jobs wait; may fail silently, since the dispatcher repeats it."""

    def ring(self, jobs: Sequence[tuple[str, str]]) -> None:
        """``(job id, queue)`` pairs; returns at once."""
        ...

    def close(self) -> None:
        """Stops the background sender."""
        ...


class Database:
    """One engine and its sessions. ``write()`` commits at the end and then rings for new jobs; ``read()`` never writes."""

    def __init__(self, settings: Settings, doorbell: Doorbell | None = None) -> None:
        raise NotImplementedError

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session for one write transaction: committed at the end, rolled back on any error."""
        raise NotImplementedError
        yield

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading."""
        raise NotImplementedError
        yield

    def close(self) -> None:
        """Closes the doorbell and all connections."""
        raise NotImplementedError
