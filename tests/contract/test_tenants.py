"""Another tenant's rows do not exist: 404 for each resource, empty lists, cursors that do not verify."""

import pytest
from apptools import PLAN, REPLAY, calibration_document, problem

SCHEDULE = {"name": "weekly", "cron": "0 6 * * 1", "zone": "Europe/Berlin", "plan": PLAN, "stream": "prod"}


@pytest.fixture
def theirs(keyed):
    """Ids of everything that tenant ``b`` has."""
    b = keyed.client(keyed.made.keys["b"])
    key = b.post("/v1/keys", json={"name": "k", "scopes": ["reports:read"]}).json()
    return {
        "trace": keyed.made.add_ready_trace("b"),
        "job": keyed.made.add_job("b"),
        "report": keyed.made.add_report("b"),
        "schedule": b.post("/v1/schedules", json=SCHEDULE).json()["id"],
        "key": key["id"],
        "calibration": b.post("/v1/calibrations", json={"calibration": calibration_document()}).json()["id"],
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/traces/{trace}"),
        ("GET", "/v1/traces/{trace}/cleaning-report"),
        ("GET", "/v1/traces/{trace}/profile"),
        ("DELETE", "/v1/traces/{trace}"),
        ("GET", "/v1/jobs/{job}"),
        ("GET", "/v1/jobs/{job}/children"),
        ("GET", "/v1/jobs/{job}/events"),
        ("POST", "/v1/jobs/{job}/cancel"),
        ("GET", "/v1/reports/{report}"),
        ("GET", "/v1/reports/{report}.html"),
        ("GET", "/v1/reports/{report}.csv"),
        ("GET", "/v1/reports/{report}/requests.parquet"),
        ("DELETE", "/v1/reports/{report}"),
        ("GET", "/v1/schedules/{schedule}"),
        ("DELETE", "/v1/schedules/{schedule}"),
        ("POST", "/v1/schedules/{schedule}/run"),
        ("GET", "/v1/schedules/{schedule}/runs"),
        ("GET", "/v1/keys/{key}"),
        ("DELETE", "/v1/keys/{key}"),
        ("GET", "/v1/calibrations/{calibration}"),
        ("DELETE", "/v1/calibrations/{calibration}"),
    ],
)
def test_by_id_is_404(keyed, theirs, method, path):
    body = problem(keyed.http.request(method, path.format(**theirs)), 404)
    assert body["code"].endswith("not_found")


def test_a_change_is_404(keyed, theirs):
    answer = keyed.http.patch(
        f"/v1/schedules/{theirs['schedule']}", json={"status": "paused"}, headers={"If-Match": '"1"'}
    )
    problem(answer, 404)


def test_a_rotation_is_404(keyed, theirs):
    problem(keyed.http.post(f"/v1/keys/{theirs['key']}/rotate", json={}), 404)


def test_a_plan_on_their_trace_is_404(keyed, theirs):
    problem(keyed.http.post("/v1/plans", json={**PLAN, "trace_id": theirs["trace"]}), 404)


def test_a_replay_on_their_trace_is_404(keyed, theirs):
    problem(keyed.http.post("/v1/replays", json={**REPLAY, "trace_id": theirs["trace"]}), 404)


def test_a_schedule_on_their_trace_is_404(keyed, theirs):
    body = {**SCHEDULE, "stream": None, "trace_id": theirs["trace"]}
    problem(keyed.http.post("/v1/schedules", json=body), 404)


@pytest.mark.parametrize("path", ["traces", "jobs", "reports", "schedules", "calibrations"])
def test_lists_are_empty(keyed, theirs, path):
    assert keyed.http.get(f"/v1/{path}").json() == {"items": [], "next_cursor": None}


def test_their_keys_are_not_listed(keyed, theirs):
    ids = [item["id"] for item in keyed.http.get("/v1/keys").json()["items"]]
    assert len(ids) == 1
    assert theirs["key"] not in ids


def test_everything_is_still_there_for_its_owner(keyed, theirs):
    b = keyed.client(keyed.made.keys["b"])
    for kind in ("trace", "job", "report", "schedule", "key"):
        assert b.get(f"/v1/{kind}s/{theirs[kind]}").status_code == 200


def test_their_catalogue_entries_do_not_exist(keyed):
    b = keyed.client(keyed.made.keys["b"])
    price = {
        "id": "mine",
        "provider": "own rack",
        "gpu": "H100-SXM",
        "region": "here",
        "usd_per_instance_hour": 1.5,
        "date": "2026-11-29",
        "source": "finance",
    }
    assert b.post("/v1/prices", json=price).status_code == 201
    assert [p["id"] for p in b.get("/v1/prices", params={"provider": "own rack"}).json()["items"]] == ["mine"]
    assert keyed.http.get("/v1/prices", params={"provider": "own rack"}).json()["items"] == []
    problem(keyed.http.delete("/v1/prices/mine"), 404)


def test_their_cursor_does_not_verify(keyed, theirs):
    b = keyed.client(keyed.made.keys["b"])
    keyed.made.add_job("b")
    cursor = b.get("/v1/jobs", params={"limit": 1}).json()["next_cursor"]
    assert b.get("/v1/jobs", params={"limit": 1, "cursor": cursor}).status_code == 200
    problem(keyed.http.get("/v1/jobs", params={"limit": 1, "cursor": cursor}), 422, "cursor.invalid")


def test_their_idempotency_key_is_their_own(keyed):
    b = keyed.client(keyed.made.keys["b"])
    headers = {"Idempotency-Key": "same"}
    first = b.post("/v1/schedules", json=SCHEDULE, headers=headers)
    second = keyed.http.post("/v1/schedules", json=SCHEDULE, headers=headers)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]


def test_equal_uploads_of_two_tenants_are_two_traces(keyed):
    b = keyed.client(keyed.made.keys["b"])
    data = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,10\n"
    assert b.put("/v1/traces", content=data).json()["id"] != keyed.http.put("/v1/traces", content=data).json()["id"]
