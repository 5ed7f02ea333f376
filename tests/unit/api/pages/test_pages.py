"""Pages in process: every one answers, asks for a key where keys are asked for, and refuses forged forms."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import httpx
import pytest
from apptools import TestApp, client, concrete, form_token, live, make_app
from fastapi.routing import iter_route_contexts
from log_makers import litellm
from report_documents import plan_document, replay_document
from trace_makers import Call

from api.pages import router
from api.pages.render import PageRoute
from models.tables import Job, Report

LISTS = ("/", "/traces", "/jobs", "/reports", "/schedules", "/plans/new", "/schedules/new", "/calibrations")
CATALOGUE = ("/catalogue/gpus", "/catalogue/models", "/catalogue/prices")


@pytest.mark.parametrize("path", [*LISTS, *CATALOGUE])
def test_pages_answer_when_there_is_nothing_yet(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.text.count("<h1>") == 1


def test_lists_say_that_they_are_empty(http: httpx.Client) -> None:
    for path, words in (("/traces", "No traces yet"), ("/jobs", "No jobs yet"), ("/reports", "No reports yet")):
        assert words in http.get(path).text
    assert "No schedules yet" in http.get("/schedules").text
    assert "There is no trace to plan on yet" in http.get("/plans/new").text


def test_a_trace_shows_its_cleaning_and_profile(made: TestApp, http: httpx.Client) -> None:
    page = http.get(f"/traces/{made.add_ready_trace(name='<b>bold</b>')}").text
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>bold" not in page
    for words in ("Cleaning report", "azure-llm-2023", "rows read", "Lengths", "Load over time"):
        assert words in page
    assert ">60<" in page


def test_a_report_page_and_its_files(made: TestApp, http: httpx.Client) -> None:
    for kind, document in (("plan", plan_document("<i>p</i>")), ("replay", replay_document("r"))):
        path = f"/reports/{made.add_report(kind=kind, document=document)}"
        page = http.get(path)
        assert page.status_code == 200
        assert document["verdict"]["sentence"] in unescape(page.text)
        assert "<i>" not in page.text
        assert http.get(f"{path}/file.json").json() == document
        assert "plotly" in http.get(f"{path}/file.html").text
        table = http.get(f"{path}/file.csv")
        assert table.headers["content-disposition"] == 'attachment; filename="capreplay-n.csv"'
        assert http.get(f"{path}/file.exe").status_code == 404


def test_a_failed_job_says_why(made: TestApp, http: httpx.Client) -> None:
    errors = [{"line": 3, "column": "out", "rule": "not_a_number", "detail": "'x' is no number", "cure": "fix it"}]
    job = made.add_job(
        kind="ingest", status="failed", error_code="trace.rows", error_detail="too many bad rows", errors=errors
    )
    page = unescape(http.get(f"/jobs/{job}").text)
    assert "too many bad rows" in page
    assert "line 3, column out: 'x' is no number (fix it)" in page
    assert "<progress" not in page
    only = made.add_job(kind="ingest", status="failed", error_detail="'x' is no number", errors=errors)
    assert unescape(http.get(f"/jobs/{only}").text).count("'x' is no number") == 1
    assert http.get(f"/jobs/{job}/state").json() == {
        "progress": 0.0, "words": "failed", "final": True, "location": None,
    }  # fmt: skip


def test_a_live_job_can_be_cancelled_from_its_page(made: TestApp, http: httpx.Client) -> None:
    job = made.add_job(kind="replay", status="queued")
    page = http.get(f"/jobs/{job}")
    assert "/static/job.js" in page.text
    answer = http.post(f"/jobs/{job}/cancel", data={"csrf": form_token(page)})
    assert answer.status_code == 303
    assert http.get(f"/jobs/{job}/state").json()["words"] == "cancelled"


@pytest.mark.parametrize("csrf", ["", "0" * 64, "ü"])
def test_forms_without_their_token_are_refused(made: TestApp, http: httpx.Client, csrf: str) -> None:
    job = made.add_job(kind="replay", status="queued")
    answer = http.post(f"/jobs/{job}/cancel", data={"csrf": csrf})
    assert answer.status_code == 403
    assert "out of date" in answer.text
    assert http.get(f"/jobs/{job}/state").json()["words"] == "queued"


def test_forms_of_other_sites_are_refused(made: TestApp, http: httpx.Client) -> None:
    job = made.add_job(kind="replay", status="queued")
    data = {"csrf": form_token(http.get(f"/jobs/{job}"))}
    answer = http.post(f"/jobs/{job}/cancel", data=data, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


def test_forms_have_bounds(http: httpx.Client) -> None:
    assert http.post("/plans/new", content=b"a=" + b"x" * 600_000).status_code == 413
    assert http.post("/plans/new", content=b"&".join(b"a=1" for _ in range(600))).status_code == 413


def test_a_plan_with_a_fault_comes_back_with_what_was_typed(made: TestApp, http: httpx.Client) -> None:
    trace = made.add_ready_trace()
    page = http.get(f"/plans/new?trace_id={trace}")
    assert f'value="{trace}" selected' in page.text
    fields = {
        "csrf": form_token(page),
        "trace": trace,
        "model": "meta-llama/Llama-3.1-9B",
        "gpus": "H100-SXM",
        "tp": "1",
    }
    fields |= {"metric_0": "ttft", "statistic_0": "p99", "limit_0": "2", "unit_0": "s", "growth": "1.5"}
    answer = http.post("/plans/new", data=fields)
    assert answer.status_code == 422
    assert "meta-llama/Llama-3.1-8B" in answer.text
    assert 'value="meta-llama/Llama-3.1-9B"' in answer.text
    assert 'value="H100-SXM" checked' in answer.text
    started = http.post("/plans/new", data=fields | {"model": "meta-llama/Llama-3.1-8B"})
    assert started.status_code == 303
    job = started.headers["location"]
    assert "H100-SXM tp1" in http.get(job).text
    again = http.get(f"/plans/new?job={job.removeprefix('/jobs/')}").text
    assert 'value="1.5"' in again
    assert 'value="H100-SXM" checked' in again


def test_the_plan_form_takes_a_trace_from_its_address(made: TestApp, http: httpx.Client) -> None:
    older = made.add_ready_trace()
    for _ in range(100):
        made.add_ready_trace()
    page = http.get(f"/plans/new?trace_id={older}")
    assert page.status_code == 200
    assert f'value="{older}" selected' in page.text
    assert f"/plans/new?trace_id={older}" in http.get(f"/traces/{older}").text
    unknown = http.get(f"/plans/new?trace_id=trc_{'0' * 32}")
    assert unknown.status_code == 422
    assert f"there is no trace trc_{'0' * 32}" in unknown.text


def test_a_trace_shows_sessions_long_requests_and_what_its_system_measured(made: TestApp, http: httpx.Client) -> None:
    found = [Call(i * 5000, 3000 * (i + 1), 10, f"s{i % 3}", took_ms=1000) for i in range(12)]
    page = http.get(f"/traces/{made.add_ready_trace(content=litellm(found))}").text
    assert "Measured by the system that logged this" in page
    assert "never mixes in these" in page
    assert "from end to start (think time)" in page
    assert ">14 s<" in page, "15 s from start to start, less what the call took"
    assert ">4,096<" in page, "a context of 4,096 tokens is too short"
    assert "Every request that states both lengths fits" not in page
    fits = http.get(f"/traces/{made.add_ready_trace()}").text
    assert "Every request that states both lengths fits" in fits
    for absent in ("Measured by", "think time", "longer than a model"):
        assert absent not in fits


def test_catalogue_search_and_own_price(http: httpx.Client) -> None:
    assert "H100-SXM" in http.get("/catalogue/gpus?find=h100").text
    assert "Nothing to show" in http.get("/catalogue/gpus?find=zzz").text
    page = http.get("/catalogue/prices")
    fields = {"csrf": form_token(page), "gpu": "H100-SXM", "provider": "Us", "region": "here", "term": "owned"}
    answer = http.post("/catalogue/prices", data=fields | {"date": "2026-11-01"})
    assert answer.status_code == 422
    assert "say how many dollars an hour" in answer.text
    answer = http.post("/catalogue/prices", data=fields | {"date": "2026-11-01", "usd_per_instance_hour": "1.23"})
    assert answer.status_code == 303
    assert "1.23" in http.get("/catalogue/prices?find=owned").text


def test_unknown_ids_are_pages_too(http: httpx.Client) -> None:
    for path in (
        f"/traces/trc_{'0' * 32}",
        f"/jobs/job_{'0' * 32}",
        f"/reports/rep_{'0' * 32}",
        "/jobs/x",
        "/catalogue/x",
    ):
        answer = http.get(path)
        assert answer.status_code == 404
        assert "<h1>Not found</h1>" in answer.text


def test_static_files_are_named_one_by_one(http: httpx.Client) -> None:
    assert http.get("/static/capreplay.css").headers["content-type"].startswith("text/css")
    assert http.get("/static/charts.js").headers["content-type"].startswith("text/javascript")
    assert len(http.get("/static/vendor/plotly.min.js").content) > 1_000_000
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e/app.py"):
        assert http.get(f"/static/{name}").status_code == 404


def page_routes(app: TestApp) -> list[tuple[str, str]]:
    """(method, address) of every page, with ids that nobody has."""
    found = []
    for route in iter_route_contexts(app.app.routes):
        original = getattr(route, "original_route", route)
        if isinstance(original, PageRoute):
            path = concrete(route.path.replace("{kind}", "gpus").replace("{action}", "pause"))
            found += [(method, path) for method in sorted(route.methods)]
    assert len(found) > 20
    return found


def test_every_page_asks_for_a_key(keyed: tuple[TestApp, httpx.Client]) -> None:
    app, http = keyed
    for method, path in page_routes(app):
        if path.startswith(("/login", "/logout")):
            continue
        answer = http.request(method, path)
        assert answer.status_code == 303 if method == "GET" else answer.status_code in (303, 403), (method, path)
        if answer.status_code == 303:
            assert answer.headers["location"] == f"/login?next={path if method == 'GET' else '/'}"


def test_logging_in_and_out(keyed: tuple[TestApp, httpx.Client]) -> None:
    app, http = keyed
    wrong = http.post("/login", data={"key": "crp_nobody_nothing", "next": "/traces"})
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    assert "crp_nobody" not in wrong.text
    right = http.post("/login", data={"key": app.keys["a"], "next": "/traces"})
    assert (right.status_code, right.headers["location"]) == (303, "/traces")
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = http.get("/traces")
    assert page.status_code == 200
    assert http.post("/logout", data={"csrf": form_token(page)}).status_code == 303
    http.cookies.clear()
    assert http.get("/traces").status_code == 303


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_logging_in_leads_nowhere_else(keyed: tuple[TestApp, httpx.Client], target: str) -> None:
    app, http = keyed
    answer = http.post("/login", data={"key": app.keys["a"], "next": target})
    assert answer.headers["location"] == "/"


def test_another_tenants_things_are_not_there(keyed: tuple[TestApp, httpx.Client]) -> None:
    app, http = keyed
    trace, report, job = app.add_ready_trace("b"), app.add_report("b"), app.add_job("b")
    http.post("/login", data={"key": app.keys["a"], "next": "/"})
    for path in (
        f"/traces/{trace}",
        f"/reports/{report}",
        f"/reports/{report}/file.csv",
        f"/jobs/{job}",
        f"/jobs/{job}/state",
    ):
        assert http.get(path).status_code == 404, path
    for path in ("/", "/traces", "/reports", "/jobs"):
        assert trace not in http.get(path).text


def test_no_page_is_in_the_api_description() -> None:
    assert router.include_in_schema is False


def test_text_that_no_database_stores_is_refused(made: TestApp, http: httpx.Client) -> None:
    assert http.get("/plans/new?job=%00").status_code == 404
    assert http.get("/schedules/new?job=%00").status_code == 404
    csrf = form_token(http.get("/plans/new"))
    answer = http.post("/plans/new", content=f"csrf={csrf}&trace=%00".encode())
    assert answer.status_code == 422
    assert "NUL" in answer.text
    fields = {"csrf": csrf, "key": "own/model", "config": r'{"a": "\u0000"}'}
    answer = http.post("/catalogue/models", data=fields)
    assert answer.status_code == 422
    assert "NUL" in answer.text


def test_what_was_deleted_is_named_but_not_linked(made: TestApp, http: httpx.Client) -> None:
    trace, schedule = f"trc_{'0' * 32}", f"sch_{'0' * 32}"
    job = made.add_job(kind="ingest", status="succeeded", trace_id=trace, schedule_id=schedule)
    page = http.get(f"/jobs/{job}").text
    assert page.count("<dd>deleted</dd>") == 2
    assert trace not in page
    assert schedule not in page
    report = made.add_report()
    with made.services.database.write() as session:
        session.get_one(Report, report).trace_id = trace
    page = http.get(f"/reports/{report}").text
    assert "its trace was deleted" in page
    assert trace not in page


def test_a_report_is_deleted_from_its_page(made: TestApp, http: httpx.Client) -> None:
    path = f"/reports/{made.add_report()}"
    answer = http.post(f"{path}/delete", data={"csrf": form_token(http.get(path))})
    assert (answer.status_code, answer.headers["location"]) == (303, "/reports")
    assert http.get(path).status_code == 404


def test_the_first_page_names_the_public_address(tmp_path: Path, template: Path) -> None:
    with (
        make_app(tmp_path, template, public_url="https://plans.example.org/") as app,
        live(app.app) as address,
        client(address) as http,
    ):
        assert "https://plans.example.org/v1/traces" in http.get("/").text


def test_lists_say_what_a_job_and_its_report_are_about(made: TestApp, http: httpx.Client) -> None:
    report_id = made.add_report()
    spec = {"model": {"key": "m/Mine"}, "gpus": [{"key": "H100-SXM"}, {"key": "L40S"}], "trace": {"name": "<chat>"}}
    with made.services.database.write() as session:
        report = session.get_one(Report, report_id)
        session.get_one(Job, report.job_id).spec = {"schema_version": 1, "plan": spec}
    for path in ("/", "/jobs", "/reports"):
        assert "m/Mine on H100-SXM, L40S; trace &lt;chat&gt;" in http.get(path).text
