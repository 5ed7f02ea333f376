"""Fixtures of the contract tests: a served application for each test, over a SQLite file of its own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from apptools import TestApp, client, live, make_app, migrated_template


@dataclass
class Site:
    """A served application and a client of it (of tenant ``a`` in keys mode)."""

    made: TestApp
    address: str
    http: httpx.Client
    stack: ExitStack

    def stack_client(self) -> httpx.Client:
        """A client of the caller's own, to be closed by it: for threads."""
        return client(self.address, self.made.keys.get("a"))

    def client(self, key: str | None) -> httpx.Client:
        """A client with another key, or with none."""
        return self.stack.enter_context(client(self.address, key))


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
            return _start(stack, tmp_path / f"data{len(list(tmp_path.iterdir()))}", template, settings)

        yield start


def _start(stack: ExitStack, folder: Path, template: Path, settings: dict[str, Any]) -> Site:
    context: AbstractContextManager[TestApp] = make_app(folder, template, **settings)
    made = stack.enter_context(context)
    address = stack.enter_context(live(made.app))
    return Site(made, address, stack.enter_context(client(address, made.keys.get("a"))), stack)


@pytest.fixture
def local(serve: Callable[..., Site]) -> Site:
    """Local mode: no keys."""
    return serve()


@pytest.fixture
def keyed(serve: Callable[..., Site]) -> Site:
    """Keys mode with the tenants ``a`` and ``b``."""
    return serve(tenants=("a", "b"))
