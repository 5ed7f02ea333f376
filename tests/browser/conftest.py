"""A real service on a free port, and the system's Chromium. A failure leaves a screenshot in test-output/browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_tools import FLAGS, Open, Visit, make_plan, service, upload, write_trace
from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(400))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service(tmp_path_factory.mktemp("service")) as base:
        yield base


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    launched = playwright.chromium.launch(executable_path=chromium_path, args=list(FLAGS))
    yield launched
    launched.close()


@pytest.fixture
def open_page(browser: Browser, address: str, request: pytest.FixtureRequest, project_root: Path) -> Iterator[Open]:
    """Opens a page in a fresh context; afterwards nothing may have been complained of that the test did not expect."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def start(base: str = address, width: int = 1200, height: int = 900, *, javascript: bool = True) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=javascript, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        visit = Visit(page, base)
        page.on("console", visit.note)
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visits.append(visit)
        return visit

    yield start
    if request.node.stash.get(FAILED, False):
        folder = project_root / "test-output" / "browser"
        folder.mkdir(parents=True, exist_ok=True)
        for number, visit in enumerate(visits):
            name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)
            visit.page.screenshot(path=folder / f"{name}-{number}.png", full_page=True)
    for context in contexts:
        context.close()
    assert [one for visit in visits for one in visit.unexpected] == []


@pytest.fixture
def visit(open_page: Open) -> Visit:
    return open_page()


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("traces") / "evening.csv")


@pytest.fixture(scope="session")
def planned(browser: Browser, address: str, trace_file: Path) -> dict[str, str]:
    """A trace and a finished plan of it: paths of their pages."""
    context = browser.new_context()
    visit = Visit(context.new_page(), address)
    trace = upload(visit, trace_file, "evening")
    report = make_plan(visit, trace, "evening plan")
    context.close()
    return {"trace": trace, "report": report}
