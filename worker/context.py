"""The services of this process, built on first use: each job process has its own connections."""

from __future__ import annotations

from functools import cache

from models.services import Services, build_services
from worker.app import settings


@cache
def services() -> Services:
    """Built once in a process."""
    return build_services(settings)
