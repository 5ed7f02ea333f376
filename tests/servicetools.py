"""A migrated SQLite database for each test, and a clock that stands still."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from models import jobs
from models.migrate import upgrade_to_head
from models.principal import LOCAL_TENANT_ID, Principal, local_principal
from models.services import Services, build_services
from models.settings import Settings
from models.tables import Job


class FakeClock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("migrated")
    upgrade_to_head(Settings(data_dir=folder))
    return folder / "capreplay.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def services(tmp_path: Path, migrated: Path, clock: FakeClock) -> Iterator[Services]:
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(migrated, data / "capreplay.db")
    made = replace(build_services(Settings(data_dir=data), ring=False), clock=clock)
    yield made
    made.database.close()


@pytest.fixture
def principal() -> Principal:
    return local_principal()


def made_job(services: Services, kind: str = "replay", **values: Any) -> Job:
    """A job of the local tenant, not yet in the database."""
    return jobs.new_job(
        tenant_id=LOCAL_TENANT_ID,
        kind=kind,
        spec={"schema_version": 1},
        code_version="v",
        settings=services.settings,
        now=services.clock(),
        **values,
    )
