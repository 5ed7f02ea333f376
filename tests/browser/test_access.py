"""By keyboard, at 400 % zoom, on paper, without script, and with a key."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from browser_tools import PROGRAM, Open, Visit, service, write_trace
from playwright.sync_api import Error, FileChooser, Page

PAGES = (
    "/",
    "/traces",
    "/plans/new",
    "/jobs",
    "/reports",
    "/schedules",
    "/schedules/new",
    "/calibrations",
    "/catalogue/gpus",
)


def focused(visit: Visit) -> str:
    """What has the keyboard: its id, name or text."""
    script = "() => { const e = document.activeElement; return e.id || e.name || e.textContent.trim(); }"
    return str(visit.page.evaluate(script))


def tab_to(visit: Visit, wanted: str, limit: int = 150) -> None:
    """Presses Tab until ``wanted`` has the keyboard."""
    for _ in range(limit):
        visit.page.keyboard.press("Tab")
        if focused(visit) == wanted:
            return
    raise AssertionError(f"{wanted} was not reached by keyboard")


def test_the_first_stop_skips_to_the_content(visit: Visit) -> None:
    visit.go("/")
    visit.page.keyboard.press("Tab")
    assert focused(visit) == "Skip to the content"
    assert visit.page.is_visible(".skip")
    visit.page.keyboard.press("Enter")
    assert visit.page.url.endswith("#main")


def open_file_chooser(page: Page) -> FileChooser:
    """The chooser that the space bar opens. Chromium now and then swallows the first press on a busy machine."""
    for _ in range(3):
        try:
            with page.expect_file_chooser(timeout=6000) as chooser:
                page.keyboard.press("Space")
        except Error:
            continue
        return chooser.value
    raise AssertionError("the space bar opens no file chooser")


def test_upload_by_keyboard(visit: Visit, tmp_path: Path) -> None:
    visit.go("/")
    visit.page.wait_for_load_state("networkidle")
    tab_to(visit, "file")
    open_file_chooser(visit.page).set_files(write_trace(tmp_path / "typed.csv", shift=3))
    tab_to(visit, "name")
    visit.page.keyboard.type("typed")
    tab_to(visit, "upload-button")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/traces/trc_*")


def test_plan_form_by_keyboard(visit: Visit, planned: dict[str, str]) -> None:
    page = visit.page
    visit.go(planned["trace"])
    tab_to(visit, "Plan capacity for this trace")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plans/new*")
    tab_to(visit, "f-model")
    page.keyboard.type("meta-llama/Llama-3.1-8B")
    tab_to(visit, "gpus")
    page.keyboard.press("Space")
    assert page.locator("input[name=gpus]:checked").count() == 1
    tab_to(visit, "Start the plan")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the keyboard is seen"


def test_everything_that_is_filled_in_has_a_label(visit: Visit) -> None:
    for path in PAGES:
        visit.go(path)
        unnamed = visit.page.eval_on_selector_all(
            "input:not([type=hidden]), select, textarea, progress",
            "all => all.filter(e => !(e.labels && e.labels.length) && !e.ariaLabel).map(e => e.outerHTML)",
        )
        assert unnamed == [], path
        assert visit.page.locator("h1").count() == 1, path
        assert visit.page.get_attribute("html", "lang") == "en"


def test_at_400_percent_zoom_nothing_scrolls_sideways(open_page: Open, planned: dict[str, str]) -> None:
    narrow = open_page(width=320, height=256)
    for path in (*PAGES, planned["trace"], planned["report"]):
        narrow.go(path)
        wide = narrow.page.evaluate("document.scrollingElement.scrollWidth")
        assert wide <= 320, f"{path} is {wide} wide"


def test_without_script_everything_but_charts_is_there(open_page: Open, planned: dict[str, str]) -> None:
    plain = open_page(javascript=False)
    plain.go(planned["report"])
    assert "H100-SXM" in plain.page.inner_text("#verdict")
    assert plain.page.is_visible("#table-alternatives")
    assert plain.page.is_visible("text=The chart needs JavaScript")
    plain.go("/")
    assert plain.page.is_visible("text=Without JavaScript, upload from the command line")
    plain.go("/plans/new")
    plain.expected.append("422")
    plain.page.click("text=Start the plan")
    plain.page.wait_for_selector("text=name a model")


def test_a_report_prints_whole(visit: Visit, planned: dict[str, str]) -> None:
    visit.go(planned["report"])
    page = visit.page
    page.emulate_media(media="print")
    assert not page.is_visible("header.site")
    assert not page.is_visible("text=What if?")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.wait_for_function("() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('svg'))")


@pytest.mark.parametrize("path", ["/", "/plans/new"])
def test_keyed_mode_asks_for_a_key(open_page: Open, tmp_path: Path, path: str) -> None:
    folder = tmp_path / "keyed"
    with service(folder, CAPREPLAY_AUTH="keys") as base:
        words = [str(PROGRAM), "keys", "create", "--name", "browser", "--data-dir", str(folder / "data")]
        key = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout.strip()
        visit = open_page(base)
        page = visit.page
        visit.go(path)
        assert page.url.startswith(f"{base}/login")
        visit.expected.append("401")
        page.fill("#key", "crp_wrong")
        page.click("main button")
        page.wait_for_selector("text=This key is not valid")
        page.fill("#key", key)
        page.click("main button")
        page.wait_for_url(base + path)
        cookie = page.context.cookies()[0]
        assert cookie["httpOnly"]
        assert cookie["sameSite"] in ("Lax", "Strict")
        visit.go("/traces")
        assert page.is_visible("text=No traces yet.")
        page.click("text=Log out")
        page.wait_for_url("**/login")
        visit.go("/traces")
        assert page.url.startswith(f"{base}/login")
