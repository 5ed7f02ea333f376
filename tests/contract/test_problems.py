"""Every error of every route is application/problem+json, names field and cure, and shows no code."""

import httpx
import pytest
from apptools import IDS, PLAN, REPLAY, TUS, api_routes, concrete, problem
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as DatabaseTimeoutError

from api.strict import MAX_JSON_BYTES, MAX_JSON_DEPTH
from models.use_cases import jobs
from models.use_cases.health import Check


def test_every_route_with_an_unknown_id_is_a_404_problem(local):
    checked = 0
    for method, path in api_routes(local.made.app):
        if "{" in path and method in ("GET", "DELETE"):
            problem(local.http.request(method, concrete(path), headers=TUS), 404)
            checked += 1
    assert checked >= 15


def test_every_route_with_a_malformed_id_is_a_problem(local):
    for method, path in api_routes(local.made.app):
        if "_id}" in path:
            bad = path.split("{")[0] + "nonsense" + path.split("}", 1)[1]
            answer = local.http.request(method, bad, json={}, headers={"If-Match": '"1"'} | TUS)
            problem(answer, 404 if answer.status_code == 404 else 422)


def test_every_route_without_a_key_is_a_401_problem(keyed):
    nobody = keyed.client(None)
    for method, path in api_routes(keyed.made.app):
        body = problem(nobody.request(method, concrete(path)), 401, "unauthorized")
        assert "Bearer" in body["detail"]


def test_every_route_with_a_wrong_method_is_a_405_problem(local):
    for path in sorted({path for _, path in api_routes(local.made.app) if ":path" not in path and "{key}" not in path}):
        answer = local.http.request("PROPFIND", concrete(path))
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"]


def test_every_body_route_refuses_what_is_not_json(local):
    routes = [route for route in api_routes(local.made.app) if route[0] in ("POST", "PATCH")]
    bodies = [path for _, path in routes if not path.endswith(("/cancel", "/run")) and "/uploads" not in path]
    assert len(bodies) >= 8
    for method, path in routes:
        if path not in bodies:
            continue

        def send(content: bytes, kind: str, method: str = method, path: str = concrete(path)) -> httpx.Response:
            return local.http.request(method, path, content=content, headers={"Content-Type": kind, "If-Match": '"1"'})

        problem(send(b"a=1", "application/x-www-form-urlencoded"), 415, "unsupported_media_type")
        problem(send(b"{", "application/json"), 422, "json.invalid")
        problem(send(b"\xff\xfe", "application/json"), 422, "json.invalid")
        problem(send(b'{"a": NaN}', "application/json"), 422, "json.invalid")
        problem(send(b'{"a": 1e999}', "application/json"), 422, "json.invalid")
        problem(send(b'{"a": 99999999999999999999}', "application/json"), 422, "json.invalid")
        problem(send(b'{"a": "\\u0000"}', "application/json"), 422, "json.invalid")
        problem(send(b'{"a": "\\ud800"}', "application/json"), 422, "json.invalid")
        problem(send(b'{"a": 1, "a": 2}', "application/json"), 422, "json.invalid")
        problem(send(b"[" * 100_000, "application/json"), 422, "json.invalid")
        problem(send(b"[]", "application/json"), 422, "validation")
        problem(send(b"", "application/json"), 422, "validation")
        problem(send(b" " * (MAX_JSON_BYTES + 1), "application/json"), 413, "too_large.json")


def test_an_unknown_path_is_a_404_problem(local):
    problem(local.http.get("/v1/nothing"), 404, "not_found")


def test_a_path_with_nul_is_a_problem(local):
    answer = local.http.get("/v1/traces/trc_%00")
    problem(answer, 422, "validation")


def test_validation_names_each_field_and_does_not_echo_the_input(local):
    body = {**PLAN, "trace_id": IDS["trc"], "tp": [0], "secret_text_of_mine": "hunter2", "objectives": []}
    answer = local.http.post("/v1/plans", json=body)
    fields = {error["field"] for error in problem(answer, 422, "validation")["errors"]}
    assert {"tp.0", "objectives", "secret_text_of_mine"} <= fields
    assert "hunter2" not in answer.text


def test_at_most_20_errors_are_listed(local):
    body = {**PLAN, "trace_id": IDS["trc"], **{f"x{i}": 1 for i in range(100)}}
    assert len(problem(local.http.post("/v1/plans", json=body), 422)["errors"]) == 20


def test_nested_replay_fields_are_named_by_path(local):
    body = {**REPLAY, "trace_id": IDS["trc"]}
    body["deployment"] = {**body["deployment"], "replicas": 0}
    (error,) = problem(local.http.post("/v1/replays", json=body), 422)["errors"]
    assert error["field"] == "deployment.replicas"


def test_deep_json_within_the_limit_is_read(local):
    depth = MAX_JSON_DEPTH - 1
    config = "[" * (depth - 1) + "]" * (depth - 1)
    body = f'{{"key": "k", "config": {{"a": {config[1:-1] or 1}}}}}'
    answer = local.http.post("/v1/model-specs", content=body, headers={"Content-Type": "application/json"})
    assert problem(answer, 422)["code"] != "json.invalid"


def test_an_unforeseen_error_is_a_500_problem_with_the_request_id(local, monkeypatch):
    def broken(*_args, **_values):
        raise ZeroDivisionError("secret internals at /etc/shadow")

    monkeypatch.setattr(jobs, "list_jobs", broken)
    answer = local.http.get("/v1/jobs", headers={"X-Request-Id": "mine-1"})
    body = problem(answer, 500, "internal")
    assert body["request_id"] == "mine-1"
    assert "secret internals" not in answer.text
    assert "ZeroDivision" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert local.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "error", [OperationalError("SELECT 1", {}, OSError("down at 10.0.0.7")), DatabaseTimeoutError("pool")]
)
def test_a_database_that_is_down_is_a_503_problem(local, monkeypatch, error):
    def down(*_args, **_values):
        raise error

    monkeypatch.setattr(jobs, "list_jobs", down)
    answer = local.http.get("/v1/jobs")
    problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"]
    assert "10.0.0.7" not in answer.text
    assert "SELECT" not in answer.text


@pytest.mark.parametrize("offered", ["x" * 65, "a b", "a\tb", "é", ""])
def test_an_impossible_request_id_is_replaced(local, offered):
    answer = local.http.get("/healthz", headers={"X-Request-Id": offered.encode("latin-1")})
    assert len(answer.headers["x-request-id"]) == 32


def test_readiness_failure_is_a_503_problem(local, monkeypatch):
    monkeypatch.setattr("api.readiness.readiness", lambda _services: [Check("broker", False, "the broker is silent")])
    answer = local.http.get("/readyz")
    body = problem(answer, 503, "not_ready")
    assert body["errors"] == [{"field": "broker", "detail": "the broker is silent"}]
    assert answer.headers["retry-after"]


def test_a_client_that_asks_for_http_2_upgrade_is_served(local):
    assert isinstance(local.http.get("/healthz", headers={"Upgrade": "h2c"}), httpx.Response)


def test_every_route_refuses_a_query_parameter_that_it_does_not_know(local):
    for method, path in api_routes(local.made.app):
        answer = local.http.request(method, concrete(path), params={"max_rejected_shares": "1"}, headers=TUS)
        body = problem(answer, 422, "query.unknown")
        assert body["errors"][0]["field"] == "max_rejected_shares"
    upload = local.http.put("/v1/traces", params={"max_rejected_shares": "1"}, content=b"x")
    assert "did you mean max_rejected_share?" in problem(upload, 422)["detail"]
