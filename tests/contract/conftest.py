"""Fixtures of the contract tests: a served application for each test, over a SQLite file of its own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from apptools import Site, migrated_template, start_site


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> Iterator[None]:
    """A line for each request would drown what failed."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def serve(tmp_path: Path, template: Path) -> Iterator[Callable[..., Site]]:
    """Serves an application with the settings given; ends with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Site:
            return start_site(stack, tmp_path / f"data{len(list(tmp_path.iterdir()))}", template, settings)

        yield start


@pytest.fixture
def local(serve: Callable[..., Site]) -> Site:
    """Local mode: no keys."""
    return serve()


@pytest.fixture
def keyed(serve: Callable[..., Site]) -> Site:
    """Keys mode with the tenants ``a`` and ``b``."""
    return serve(tenants=("a", "b"))
