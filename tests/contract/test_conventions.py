"""API conventions of the guide's section 7: idempotency, cursors, ETags, commits before answers, long work."""

import threading
from contextlib import contextmanager

import pytest
from apptools import CSV, PLAN, REPLAY, client, live, problem

from models.tables import Job
from models.use_cases import plans

SCHEDULE = {"name": "weekly", "cron": "0 6 * * 1", "zone": "Europe/Berlin", "plan": PLAN, "stream": "prod"}


# Idempotency-Key


def test_a_repeated_post_gets_the_first_answer(local):
    headers = {"Idempotency-Key": "k1"}
    first = local.http.post("/v1/schedules", json=SCHEDULE, headers=headers)
    again = local.http.post("/v1/schedules", json=SCHEDULE, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    for name in ("location", "etag"):
        assert again.headers[name] == first.headers[name]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len(local.http.get("/v1/schedules").json()["items"]) == 1


def test_the_same_key_with_another_body_is_422(local):
    headers = {"Idempotency-Key": "k1"}
    local.http.post("/v1/schedules", json=SCHEDULE, headers=headers)
    other = local.http.post("/v1/schedules", json={**SCHEDULE, "name": "other"}, headers=headers)
    problem(other, 422, "idempotency_key_reused")
    elsewhere = local.http.post("/v1/keys", json={"name": "x", "scopes": ["admin"]}, headers=headers)
    problem(elsewhere, 422, "idempotency_key_reused")
    assert len(local.http.get("/v1/schedules").json()["items"]) == 1


def test_a_refused_request_may_be_repeated_with_its_key(local):
    headers = {"Idempotency-Key": "k1"}
    problem(local.http.post("/v1/schedules", json={**SCHEDULE, "zone": "Mars/X"}, headers=headers), 422)
    assert local.http.post("/v1/schedules", json=SCHEDULE, headers=headers).status_code == 201


def test_concurrent_repeats_do_the_work_once(local):
    answers = []
    barrier = threading.Barrier(4)

    def post() -> None:
        with local.stack_client() as http:
            barrier.wait()
            answers.append(http.post("/v1/schedules", json=SCHEDULE, headers={"Idempotency-Key": "race"}))

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(local.http.get("/v1/schedules").json()["items"]) == 1


@pytest.mark.parametrize("key", ["x" * 201, "a b", "a\tb"])
def test_an_impossible_key_is_refused(local, key):
    problem(local.http.post("/v1/schedules", json=SCHEDULE, headers={"Idempotency-Key": key}), 422)


def test_posts_without_a_body_take_a_key_too(local):
    job_id = local.made.add_job()
    headers = {"Idempotency-Key": "c"}
    first = local.http.post(f"/v1/jobs/{job_id}/cancel", headers=headers)
    assert local.http.post(f"/v1/jobs/{job_id}/cancel", headers=headers).json() == first.json()


# Cursors


def test_pages_cover_a_list_once_and_in_order(local):
    ids = [local.made.add_job() for _ in range(7)]
    seen, cursor = [], None
    while True:
        page = local.http.get("/v1/jobs", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        local.made.add_job()  # newer rows do not shift the pages that follow
    assert seen == ids[::-1]


def test_a_catalogue_is_paged_by_key(local):
    seen, params = [], {"limit": 25}
    while True:
        page = local.http.get("/v1/gpu-types", params=params).json()
        seen += [item["key"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == sorted(set(seen))
    assert len(seen) > 25


def test_a_cursor_is_opaque_and_signed(local):
    for _ in range(3):
        local.made.add_job()
    cursor = local.http.get("/v1/jobs?limit=1").json()["next_cursor"]
    swapped = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    for bad in (swapped, "x", "", "%00", cursor + "=", "A" * 200, "é"):
        problem(local.http.get("/v1/jobs", params={"limit": 1, "cursor": bad}), 422, "cursor.invalid")
    problem(local.http.get("/v1/jobs", params={"cursor": "A" * 513}), 422, "validation")


def test_a_cursor_holds_for_its_list_and_filters_only(local):
    for _ in range(3):
        local.made.add_job()
    cursor = local.http.get("/v1/jobs?limit=1").json()["next_cursor"]
    problem(local.http.get("/v1/reports", params={"cursor": cursor}), 422, "cursor.invalid")
    problem(local.http.get("/v1/jobs", params={"cursor": cursor, "status": "queued"}), 422, "cursor.invalid")


# ETags


@pytest.mark.parametrize("kind", ["trace", "job", "report", "schedule", "engines", "gpu"])
def test_if_none_match_answers_304(local, kind):
    path = {
        "trace": lambda: f"/v1/traces/{local.made.add_ready_trace()}",
        "job": lambda: f"/v1/jobs/{local.made.add_job()}",
        "report": lambda: f"/v1/reports/{local.made.add_report()}",
        "schedule": lambda: f"/v1/schedules/{local.http.post('/v1/schedules', json=SCHEDULE).json()['id']}",
        "engines": lambda: "/v1/engines",
        "gpu": lambda: "/v1/gpu-types/H100-SXM",
    }[kind]()
    first = local.http.get(path)
    assert first.status_code == 200
    tag = first.headers["etag"]
    for value in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = local.http.get(path, headers={"If-None-Match": value})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert local.http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_an_update_needs_if_match(local):
    schedule = local.http.post("/v1/schedules", json=SCHEDULE)
    path, tag = schedule.headers["location"], schedule.headers["etag"]
    problem(local.http.patch(path, json={"status": "paused"}), 428, "precondition_required")
    for bad in ('"99"', '"x"', "1", "*", f"W/{tag}", '"' + "9" * 30 + '"'):
        problem(local.http.patch(path, json={"status": "paused"}, headers={"If-Match": bad}), 412, "version_mismatch")
    paused = local.http.patch(path, json={"status": "paused"}, headers={"If-Match": tag})
    assert paused.json()["status"] == "paused"
    assert paused.json()["next_run_at"] is None
    problem(local.http.patch(path, json={"status": "active"}, headers={"If-Match": tag}), 412)
    resumed = local.http.patch(path, json={"status": "active"}, headers={"If-Match": paused.headers["etag"]})
    assert resumed.json()["status"] == "active"
    assert resumed.json()["next_run_at"] is not None


# Sessions


def test_the_session_commits_before_the_answer_goes_out(local, monkeypatch):
    """A client that was told of a job finds it, whatever connection it asks on: the commit is not after the answer."""
    order = []
    database = local.made.services.database
    original = database.write

    @contextmanager
    def watched():
        with original() as session:
            yield session
        order.append("commit")

    monkeypatch.setattr(database, "write", watched)

    async def spying(scope, receive, send):
        async def spy(message):
            if message["type"] == "http.response.start":
                order.append("answer")
            await send(message)

        await local.made.app(scope, receive, spy)

    trace_id = local.made.add_ready_trace()
    order.clear()
    with live(spying) as address, client(address) as http:
        assert http.post("/v1/plans", json={**PLAN, "trace_id": trace_id}).status_code == 202
    assert order == ["commit", "answer"]


def test_the_doorbell_rings_after_the_commit_with_the_new_jobs_only(local):
    rung = []

    class Bell:
        def ring(self, jobs):
            with local.made.services.database.read() as session:
                rung.extend((job_id, session.get(Job, job_id).status) for job_id, _queue in jobs)

        def close(self):
            pass

    trace_id = local.made.add_ready_trace()
    local.made.services.database.doorbell = Bell()
    body = {**REPLAY, "trace_id": trace_id}
    job_id = local.http.post("/v1/replays", json=body).json()["id"]
    assert rung == [(job_id, "queued")]
    assert local.http.post("/v1/replays", json=body).json()["id"] == job_id
    assert len(rung) == 1
    local.made.services.database.doorbell = None


def test_a_failed_request_leaves_nothing(local, monkeypatch):
    trace_id = local.made.add_ready_trace()

    def fails_late(*args, **values):
        plans.start_plan(*args, **values)
        raise RuntimeError("late")

    monkeypatch.setattr("api.routes.plans.start_plan", fails_late)
    problem(local.http.post("/v1/plans", json={**PLAN, "trace_id": trace_id}), 500)
    assert local.http.get("/v1/jobs?kind=plan").json()["items"] == []


# Long work


def test_a_plan_answers_202_with_the_jobs_address(local):
    trace_id = local.made.add_ready_trace()
    answer = local.http.post("/v1/plans", json={**PLAN, "name": "next year", "trace_id": trace_id})
    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{body['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert (body["kind"], body["name"], body["status"], body["trace_id"]) == ("plan", "next year", "queued", trace_id)
    assert body["children"] == {"queued": 2}
    children = local.http.get(f"{answer.headers['location']}/children").json()["items"]
    assert [child["position"] for child in children] == [0, 1]
    assert [job["id"] for job in local.http.get("/v1/jobs?kind=plan").json()["items"]] == [body["id"]]


def test_an_identical_plan_gets_the_first_ones_job(local):
    body = {**PLAN, "trace_id": local.made.add_ready_trace()}
    first, again = (local.http.post("/v1/plans", json=body) for _ in range(2))
    assert again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    other = local.http.post("/v1/plans", json={**body, "seed": 1})
    assert other.json()["id"] != first.json()["id"]


def test_a_key_that_may_only_start_jobs_gets_its_answer(keyed):
    trace_id = keyed.made.add_ready_trace("a")
    starter = keyed.client(keyed.made.add_key("a", "jobs:write"))
    job = starter.post("/v1/plans", json={**PLAN, "trace_id": trace_id})
    assert job.status_code == 202
    assert starter.post(f"/v1/jobs/{job.json()['id']}/cancel").status_code == 202


def test_a_trace_that_is_not_ready_is_409_with_retry_after(local):
    trace_id = local.http.put("/v1/traces", content=CSV).json()["id"]
    for path, body in (("/v1/plans", PLAN), ("/v1/replays", REPLAY)):
        answer = local.http.post(path, json={**body, "trace_id": trace_id})
        assert "wait for the job" in problem(answer, 409, "trace.not_ready")["detail"]
        assert int(answer.headers["retry-after"]) >= 1
    for part in ("profile", "cleaning-report"):
        answer = local.http.get(f"/v1/traces/{trace_id}/{part}")
        problem(answer, 409, "trace.not_ready")
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"model": "meta-llama/Llama-3.1-8X"}, "catalogue.unknown_model", "model"),
        ({"gpus": ["H100-SMX9"]}, "catalogue.unknown_gpu", "gpu"),
        ({"engine": {"preset": "vllm-99x"}}, "engine.unknown_preset", "engine.preset"),
        ({"engine": {"overrides": {"max_num_seq": 5}}}, "engine.knob", "engine.overrides.max_num_seq"),
    ],
)
def test_a_spec_error_names_the_field_and_the_cure(local, change, code, field):
    body = {**PLAN, "trace_id": local.made.add_ready_trace(), **change}
    found = problem(local.http.post("/v1/plans", json=body), 422, code)
    assert found["errors"][0]["field"].startswith(field)
    assert found["errors"][0]["cure"]
