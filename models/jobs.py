"""The job state machine."""

from __future__ import annotations

from dataclasses import dataclass

from models.tables import Job


@dataclass(frozen=True)
class StartedJob:
    """A job, and whether this call created it (False: found by its input hash)."""

    job: Job
    created: bool
