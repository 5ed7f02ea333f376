"""What a planner does: upload, watch, read the report, ask what if, repeat on a schedule."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from browser_tools import JOB_TIMEOUT_MS, ROWS, Open, Visit, make_plan, upload, write_trace

CHARTS_DRAWN = "() => [...document.querySelectorAll('details[open] .plot, .plot')].some(p => p.querySelector('svg'))"


def test_upload_and_profile(visit: Visit, tmp_path: Path) -> None:
    upload(visit, write_trace(tmp_path / "mine.csv", shift=1), "my evening")
    page = visit.page
    assert page.inner_text("h1") == "my evening"
    assert page.inner_text(".keys div:has(dt:text-is('Requests')) dd") == str(ROWS)
    assert f"{ROWS}" in page.inner_text("table:has(caption:has-text('Cleaning report'))")
    page.wait_for_function(CHARTS_DRAWN)
    visit.go("/traces")
    assert page.is_visible("text=my evening")


def test_plan_is_watched_to_its_report(visit: Visit, planned: dict[str, str]) -> None:
    page = visit.page
    seen: list[str] = []
    page.on("framenavigated", lambda frame: seen.append(frame.url))
    report = make_plan(visit, planned["trace"], "watched", gpu="H100-SXM", growth="1.25")
    assert any("/jobs/job_" in url for url in seen), "the job's page came before the report"
    assert report.startswith("/reports/rep_")
    assert "H100-SXM" in page.inner_text("#verdict")
    assert page.inner_text("h1") == "watched"
    assert "1.25 times its load" in page.inner_text("#workload")
    for section in ("alternatives", "slo", "workload", "capacity", "memory", "cost", "method"):
        assert page.is_visible(f"#{section} h2"), section
    page.wait_for_function("() => document.querySelectorAll('.plot svg.main-svg').length >= 4")
    assert "on_demand" in page.inner_text("#table-costs")
    assert "transported" in page.inner_text("#method")


def test_each_chart_has_a_table_with_a_csv(visit: Visit, planned: dict[str, str]) -> None:
    visit.go(planned["report"])
    page = visit.page
    plots = page.eval_on_selector_all(".plot", "all => all.map(p => p.id.replace('plot-', 'table-'))")
    assert len(plots) >= 4
    for name in plots:
        assert page.query_selector(f"#{name} table") is not None, name
    with page.expect_download() as download:
        page.click("#table-alternatives a.csv")
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert rows[0]["gpu"] == "H100-SXM"
    assert float(rows[0]["usd_per_hour"]) > 0


def test_report_files(visit: Visit, planned: dict[str, str], tmp_path: Path) -> None:
    page = visit.page
    for label, suffix in (("HTML file", "html"), ("CSV", "csv"), ("JSON", "json")):
        visit.go(planned["report"])
        with page.expect_download() as download:
            page.click(f"main .row >> text={label}")
        assert download.value.suggested_filename == f"capreplay-evening-plan.{suffix}"
        download.value.save_as(tmp_path / f"report.{suffix}")
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["schema"] == "capreplay.report/1"
    assert (tmp_path / "report.csv").read_text().startswith("rank,status,model,gpu")


def test_the_html_file_opens_offline(open_page: Open, visit: Visit, planned: dict[str, str], tmp_path: Path) -> None:
    visit.go(planned["report"])
    with visit.page.expect_download() as download:
        visit.page.click("main .row >> text=HTML file")
    path = tmp_path / "report.html"
    download.value.save_as(path)
    alone = open_page()
    alone.page.context.set_offline(True)
    asked: list[str] = []
    alone.page.on("request", lambda request: asked.append(request.url))
    alone.page.goto(path.as_uri())
    alone.page.wait_for_function("() => document.querySelectorAll('.plot svg.main-svg').length >= 4")
    assert [url for url in asked if not url.startswith(("file://", "data:", "blob:"))] == []
    assert alone.page.inner_text("#verdict") == visit.page.inner_text("#verdict")


def test_what_if_starts_from_the_plan_and_changes_the_answer(visit: Visit, planned: dict[str, str]) -> None:
    page = visit.page
    visit.go(planned["report"])
    before = page.inner_text(".keys")
    page.click("text=What if?")
    page.wait_for_url("**/plans/new?job=*")
    assert page.input_value("#f-model") == "meta-llama/Llama-3.1-8B"
    assert page.is_checked("input[name=gpus][value='H100-SXM']")
    assert page.input_value("#f-limit_0") == "2"
    page.fill("#f-growth", "40")
    page.fill("#f-name", "forty times")
    page.click("text=Start the plan")
    page.wait_for_url("**/reports/rep_*", timeout=JOB_TIMEOUT_MS)
    assert "forty times" in page.inner_text("h1")
    gpus = ".keys div:has(dt:text-is('GPUs')) dd"
    assert int(page.inner_text(gpus).split()[0]) > 1
    assert page.inner_text(".keys") != before


def test_the_same_plan_again_is_answered_at_once_with_the_same_report(visit: Visit, planned: dict[str, str]) -> None:
    visit.go(planned["report"])
    visit.page.click("text=What if?")
    visit.page.click("text=Start the plan")
    visit.page.wait_for_url("**/jobs/job_*")
    visit.page.click("text=See the result")
    visit.page.wait_for_url("**/reports/rep_*")
    assert visit.page.url.removeprefix(visit.base) == planned["report"]


def test_schedule_from_report_to_deletion(visit: Visit, planned: dict[str, str]) -> None:
    page = visit.page
    visit.go(planned["report"])
    page.click("text=Repeat on a schedule")
    page.fill("#f-cron", "61 * * * *")
    page.click("text=Create the schedule")
    visit.expected.append("422")
    page.wait_for_selector("#f-cron[aria-invalid=true]")
    page.fill("#f-cron", "30 5 * * 1-5")
    page.fill("#f-zone", "Europe/Berlin")
    page.fill("#f-name", "each working day")
    page.click("text=Create the schedule")
    page.wait_for_url("**/schedules/sch_*")
    assert re.search(r"next run\s+20\d\d-\d\d-\d\d 0[34]:30 UTC", page.inner_text(".facts"))
    page.click("main >> text=Pause")
    page.wait_for_selector(".facts:has-text('paused')")
    page.click("main >> text=Resume")
    page.wait_for_selector(".facts:has-text('active')")
    page.click("main >> text=Run now")
    page.wait_for_selector("table:has(caption:has-text('Newest first')) tbody tr")
    assert "manual" in page.inner_text("tbody")
    visit.go("/schedules")
    page.click("text=each working day")
    page.click("main >> text=Delete")
    page.wait_for_selector("text=No schedules yet.")


def test_catalogue_is_searched_and_extended(visit: Visit) -> None:
    page = visit.page
    visit.go("/catalogue/gpus?find=h100-sxm")
    assert page.inner_text("tbody th") == "H100-SXM"
    visit.go("/catalogue/prices")
    page.select_option("#f-gpu", "H100-SXM")
    for name, value in (("provider", "Our cluster"), ("region", "basement"), ("term", "owned"), ("date", "2026-11-01")):
        page.fill(f"#f-{name}", value)
    page.click("main form.stack >> text=Add")
    visit.expected.append("422")
    page.wait_for_selector("text=say how many dollars an hour")
    page.fill("#f-usd_per_instance_hour", "1.75")
    page.click("main form.stack >> text=Add")
    page.wait_for_url("**/catalogue/prices?find=*")
    visit.go("/catalogue/prices?find=basement")
    assert "1.75" in page.inner_text("tbody")
    visit.go("/catalogue/models")
    page.fill("#f-key", "lab/tiny")
    page.fill("#f-config", "{}")
    page.click("main form.stack >> text=Add")
    page.wait_for_selector("#faults")
