"""Both modes: embedded (SQLite, a folder as queue) and server (PostgreSQL, Redis); each test has its own of all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stack import SERVER, Stack, stack_of

SECRET = "a secret for tests only"


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """Kernels in the cache that the workers share: no test is to wait for a compiler while it watches a job."""
    from worker.runner import warm_up

    warm_up(everything=False)


@pytest.fixture(params=["embedded", SERVER])
def stack(request: pytest.FixtureRequest, tmp_path: Path, compiled_kernels: None) -> Iterator[Stack]:
    """A deployment in each mode; no worker runs yet."""
    if request.param == "embedded":
        with stack_of(tmp_path / "data") as made:
            yield made
        return
    database: Callable[[], str] = request.getfixturevalue("postgres_database")
    redis_url: str = request.getfixturevalue("clean_redis_url")
    with stack_of(
        tmp_path / "data", database_url=database(), broker_url=redis_url, secret_key=SECRET, worker_concurrency=1
    ) as made:
        yield made


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def data_stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """A database of each kind without any worker."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_database")()
    with stack_of(tmp_path / "data", database_url=url) as made:
        yield made
