"""The same API on PostgreSQL: texts, cursors, races, rollbacks."""

import threading
from contextlib import ExitStack

import pytest
from apptools import CSV, PLAN, client, problem, start_site

from models.migrate import upgrade_to_head
from models.settings import Settings

pytestmark = pytest.mark.postgres
SCHEDULE = {"name": "weekly", "cron": "0 6 * * 1", "zone": "Europe/Berlin", "plan": PLAN, "stream": "prod"}


@pytest.fixture
def site(postgres_database, tmp_path, template):
    url = postgres_database()
    upgrade_to_head(Settings(data_dir=tmp_path / "migrate", database_url=url))
    with ExitStack() as stack:
        yield start_site(stack, tmp_path / "data", template, {"database_url": url, "tenants": ("a", "b")})


def _at_once(site, count, send):
    """Answers of ``count`` clients that send at the same moment."""
    answers, barrier = [], threading.Barrier(count)

    def one() -> None:
        with client(site.address, site.made.keys["a"]) as http:
            http.get("/v1/engines")  # the line is open before the race starts
            barrier.wait(timeout=30)
            answers.append(send(http))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(answers) == count
    return answers


def test_identical_plans_at_once_are_one_job(site):
    body = {**PLAN, "trace_id": site.made.add_ready_trace("a")}
    answers = _at_once(site, 6, lambda http: http.post("/v1/plans", json=body))
    assert {answer.status_code for answer in answers} == {202}, [answer.text for answer in answers]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(site.http.get("/v1/jobs?kind=plan").json()["items"]) == 1


def test_identical_uploads_at_once_are_one_trace(site):
    answers = _at_once(site, 6, lambda http: http.put("/v1/traces", content=CSV))
    assert {answer.status_code for answer in answers} == {202}, [answer.text for answer in answers]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(site.http.get("/v1/traces").json()["items"]) == 1


def test_repeats_with_one_idempotency_key_at_once_do_the_work_once(site):
    headers = {"Idempotency-Key": "race"}
    answers = _at_once(site, 6, lambda http: http.post("/v1/schedules", json=SCHEDULE, headers=headers))
    assert {answer.status_code for answer in answers} <= {201, 409}, [answer.text for answer in answers]
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    assert len(site.http.get("/v1/schedules").json()["items"]) == 1


def test_changes_of_one_version_at_once_lose_none(site):
    made = site.http.post("/v1/schedules", json=SCHEDULE)
    path, tag = made.headers["location"], made.headers["etag"]
    answers = _at_once(site, 6, lambda http: http.patch(path, json={"status": "paused"}, headers={"If-Match": tag}))
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412, 412, 412]


def test_pages_cover_a_list_once_and_in_order(site):
    ids = [site.made.add_job("a") for _ in range(5)]
    seen, params = [], {"limit": 2}
    while True:
        page = site.http.get("/v1/jobs", params=params).json()
        seen += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == ids[::-1]


def test_ready_traces_answer_and_others_do_not_exist(site):
    trace_id = site.made.add_ready_trace("b")
    problem(site.http.get(f"/v1/traces/{trace_id}"), 404)
    b = site.client(site.made.keys["b"])
    for part in ("", "/profile", "/cleaning-report"):
        assert b.get(f"/v1/traces/{trace_id}{part}").status_code == 200


def test_readiness_names_the_database(site):
    checks = site.http.get("/readyz").json()["checks"]
    assert all(check["ok"] for check in checks), checks
    assert "postgresql" in str(checks)


def test_a_repeated_post_gets_the_first_answer(site):
    headers = {"Idempotency-Key": "k"}
    first, again = (site.http.post("/v1/schedules", json=SCHEDULE, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201), first.text
    assert again.json() == first.json()
