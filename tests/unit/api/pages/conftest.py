"""An application with pages for each test, in local mode or with keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from apptools import TestApp, client, live, make_app, migrated_template


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def made(tmp_path: Path, template: Path) -> Iterator[TestApp]:
    with make_app(tmp_path / "local", template) as app:
        yield app


@pytest.fixture
def http(made: TestApp) -> Iterator[httpx.Client]:
    with live(made.app) as address, client(address) as opened:
        yield opened


@pytest.fixture
def keyed(tmp_path: Path, template: Path) -> Iterator[tuple[TestApp, httpx.Client]]:
    with (
        make_app(tmp_path / "keyed", template, tenants=("a", "b")) as app,
        live(app.app) as address,
        client(address) as opened,
    ):
        yield app, opened
