"""The security checklist of the engineering guide (section 13), as far as the API answers for it: one test a line."""

import json
import logging
import re
import socket
import stat

import pytest
import structlog
from apptools import CSV, PLAN, REPLAY, api_routes, client, concrete, problem
from fastapi.routing import APIRoute, iter_route_contexts
from report_documents import plan_document
from sqlalchemy import select
from structlog.testing import capture_logs

from api.app import create_app
from api.auth import FAILURES_PER_MINUTE, KEY_COOKIE, principal_of
from api.problems import Problem
from api.streams import MAX_STREAMS_PER_TENANT
from models.settings import Settings
from models.tables import AuditEvent, Job, Tenant
from replay.errors import SpecError

PUBLIC = {
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/static/{name}",
    "/static/vendor/plotly.min.js",
    "/favicon.ico",
    "/login",
    "/logout",
    "/catalogue",  # redirects to a page that asks for a key
}
"""Routes that need no key."""


def _asks_who(dependant) -> bool:
    return dependant.call is principal_of or any(_asks_who(part) for part in dependant.dependencies)


def test_every_route_has_an_auth_dependency_or_is_public(local):
    guarded, public = set(), set()
    for route in iter_route_contexts(local.made.app.routes):
        original = getattr(route, "original_route", route)
        if isinstance(original, APIRoute):
            (guarded if _asks_who(original.dependant) else public).add(route.path)
        else:
            public.add(route.path)
    assert public <= PUBLIC
    assert len(guarded) > 40
    assert all(path not in public for path in guarded if path.startswith("/v1"))


def test_no_route_under_v1_is_public(keyed):
    nobody = keyed.client(None)
    for method, path in api_routes(keyed.made.app):
        assert nobody.request(method, concrete(path)).status_code == 401


@pytest.mark.parametrize(
    ("scope", "method", "path", "body"),
    [
        ("jobs:write", "PUT", "/v1/traces", None),
        ("reports:read", "PUT", "/v1/traces", None),
        ("traces:write", "POST", "/v1/plans", {**PLAN, "trace_id": f"trc_{'0' * 32}"}),
        ("reports:read", "POST", "/v1/replays", {**REPLAY, "trace_id": f"trc_{'0' * 32}"}),
        ("reports:read", "POST", f"/v1/jobs/job_{'0' * 32}/cancel", None),
        ("traces:write", "GET", "/v1/jobs", None),
        ("jobs:write", "GET", "/v1/keys", None),
        ("jobs:write", "POST", "/v1/keys", {"name": "x", "scopes": ["admin"]}),
        ("reports:read", "DELETE", f"/v1/traces/trc_{'0' * 32}", None),
        ("reports:read", "DELETE", f"/v1/reports/rep_{'0' * 32}", None),
        ("reports:read", "DELETE", "/v1/prices/x", None),
    ],
)
def test_a_key_without_the_scope_is_403(keyed, scope, method, path, body):
    limited = keyed.client(keyed.made.add_key("a", scope))
    problem(limited.request(method, path, json=body) if body else limited.request(method, path), 403, "forbidden.scope")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer nonsense",
        "Bearer crp_x_y",
        "Bearer crp_" + "0" * 500,
        "Basic YTpi",
        "Bearer crp_é",
    ],
)
def test_a_bad_key_is_the_same_401_for_every_cause(keyed, header):
    nobody = keyed.client(None)
    answer = nobody.get("/v1/jobs", headers={"Authorization": header.encode("latin-1")})
    body = problem(answer, 401, "unauthorized")
    assert body["detail"] == "give a valid API key: Authorization: Bearer crp_..."
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_key_with_another_secret_a_revoked_and_an_expired_one_are_the_same_401(keyed):
    text = keyed.made.add_key("a", "reports:read")
    other = text[:-4] + ("aaaa" if text[-4:] != "aaaa" else "bbbb")
    problem(keyed.client(other).get("/v1/jobs"), 401, "unauthorized")
    assert keyed.client(text).get("/v1/jobs").status_code == 200
    key_id = "key_" + text.split("_")[1]
    assert keyed.http.delete(f"/v1/keys/{key_id}").status_code == 204
    problem(keyed.client(text).get("/v1/jobs"), 401, "unauthorized")


def test_key_failures_are_rate_limited(keyed):
    guesser = keyed.client("crp_" + "0" * 32 + "_guess")
    statuses = [guesser.get("/v1/jobs").status_code for _ in range(FAILURES_PER_MINUTE + 1)]
    assert statuses[0] == 401
    assert statuses[-1] in (401, 429)  # the minute may turn once
    while guesser.get("/v1/jobs").status_code == 401:
        assert len(statuses) < 3 * FAILURES_PER_MINUTE
        statuses.append(401)
    refused = guesser.get("/v1/jobs")
    problem(refused, 429, "limit.refused_keys")
    assert int(refused.headers["retry-after"]) > 0
    assert keyed.http.get("/v1/jobs").status_code == 200


def test_requests_per_minute_are_limited_by_tenant(serve):
    site = serve(tenants=("a", "b"), requests_per_minute=5)
    statuses = [site.http.get("/v1/jobs").status_code for _ in range(12)]
    assert 429 in statuses
    answer = next(a for _ in range(12) if (a := site.http.get("/v1/jobs")).status_code == 429)
    problem(answer, 429, "limit.requests")
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert site.client(site.made.keys["b"]).get("/v1/jobs").status_code == 200


def test_a_tenants_own_limit_beats_the_installations(keyed):
    with keyed.made.services.database.write() as session:
        session.get(Tenant, keyed.made.tenants["a"]).requests_per_minute = 2
    answers = [keyed.http.get("/v1/jobs") for _ in range(8)]
    assert {answer.status_code for answer in answers} == {200, 429}
    b = keyed.client(keyed.made.keys["b"])
    assert {b.get("/v1/jobs").status_code for _ in range(8)} == {200}


def test_live_jobs_are_limited_by_tenant(serve):
    site = serve(tenants=("a", "b"), max_live_jobs=1)
    trace_id = site.made.add_ready_trace("a")
    assert site.http.post("/v1/plans", json={**PLAN, "trace_id": trace_id}).status_code == 202
    answer = site.http.post("/v1/replays", json={**REPLAY, "trace_id": trace_id})
    problem(answer, 429)
    assert answer.headers["retry-after"]


def test_event_streams_are_limited(local):
    local.made.app.state.context.streams._open["x"] = 0
    job_id = local.made.add_job()
    tenant = local.made.tenants["local"]
    local.made.app.state.context.streams._open[tenant] = MAX_STREAMS_PER_TENANT
    problem(local.http.get(f"/v1/jobs/{job_id}/events"), 429, "limit.streams")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/plans", {"gpus": ["H100-SXM"] * 51}),
        ("/v1/plans", {"gpus": []}),
        ("/v1/plans", {"tp": list(range(1, 10))}),
        ("/v1/plans", {"tp": [65]}),
        ("/v1/plans", {"model": "x" * 301}),
        ("/v1/plans", {"name": "x" * 201}),
        ("/v1/plans", {"name": "a\u0001b"}),
        ("/v1/plans", {"objectives": [{"metric": "ttft", "threshold_s": i} for i in range(1, 22)]}),
        ("/v1/plans", {"transform": {"growth": 1001}}),
        ("/v1/plans", {"transform": {"growth": -1}}),
        ("/v1/plans", {"engine": {"overrides": {f"k{i}": i for i in range(41)}}}),
        ("/v1/plans", {"seed": 2**31}),
        ("/v1/replays", {"deployment": {**REPLAY["deployment"], "replicas": 4097}}),
        ("/v1/replays", {"deployment": {**REPLAY["deployment"], "gpu": "x" * 101}}),
    ],
)
def test_job_parameters_are_bounded(local, path, change):
    base = PLAN if path == "/v1/plans" else REPLAY
    problem(local.http.post(path, json={**base, "trace_id": f"trc_{'0' * 32}", **change}), 422, "validation")


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "1e3"])
def test_page_sizes_are_bounded(local, limit):
    problem(local.http.get(f"/v1/jobs?limit={limit}"), 422, "validation")


def test_host_header_of_another_name_is_refused_in_local_mode(local):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "localhost@evil.example"):
        problem(local.http.get("/v1/jobs", headers={"Host": host}), 421, "host_not_local")
    for host in ("localhost", "localhost:9", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert local.http.get("/v1/jobs", headers={"Host": host}).status_code == 200


def test_unsafe_requests_of_other_sites_are_refused_in_local_mode(local):
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        problem(local.http.put("/v1/traces", content=CSV, headers=headers), 403, "forbidden.origin")
    assert local.http.put("/v1/traces", content=CSV, headers={"Origin": local.address}).status_code == 202


def test_a_cookie_is_no_key_for_another_site(keyed):
    nobody = keyed.client(None)
    nobody.cookies.set(KEY_COOKIE, keyed.made.keys["a"])
    assert nobody.get("/v1/jobs").status_code == 200
    answer = nobody.put("/v1/traces", content=CSV, headers={"Origin": "https://evil.example"})
    problem(answer, 403, "forbidden.origin")
    assert nobody.put("/v1/traces", content=CSV, headers={"Origin": keyed.address}).status_code == 202


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_no_start_without_keys_on_an_address_that_others_reach(tmp_path, host):
    with pytest.raises(SpecError, match="CAPREPLAY_AUTH=keys"):
        create_app(Settings(data_dir=tmp_path, host=host))


def test_no_start_without_a_secret_outside_embedded_mode(tmp_path):
    with pytest.raises(ValueError, match="CAPREPLAY_SECRET_KEY"):
        Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1:1/0")


def test_the_embedded_secret_is_made_once_and_is_private(tmp_path):
    settings = Settings(data_dir=tmp_path)
    assert settings.signing_key() == Settings(data_dir=tmp_path).signing_key()
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600


def test_security_headers_are_on_every_answer(local):
    paths = ["/healthz", "/v1/jobs", "/v1/nothing", "/", "/static/capreplay.css"]
    for answer in [local.http.get(path) for path in paths]:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src" not in policy  # scripts fall under default-src: no inline ones
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "strict-transport-security" not in answer.headers
        assert "set-cookie" not in answer.headers


def test_cors_is_off_unless_origins_are_listed(serve):
    asked = {"Origin": "https://tool.example", "Access-Control-Request-Method": "GET"}
    closed = serve(tenants=("a",))
    assert "access-control-allow-origin" not in closed.client(None).options("/v1/jobs", headers=asked).headers
    opened = serve(tenants=("a",), cors_origins=("https://tool.example",))
    answer = opened.client(None).options("/v1/jobs", headers=asked)
    assert answer.headers["access-control-allow-origin"] == "https://tool.example"
    assert "access-control-allow-credentials" not in answer.headers
    other = {**asked, "Origin": "https://evil.example"}
    assert "access-control-allow-origin" not in opened.client(None).options("/v1/jobs", headers=other).headers


def test_listed_origins_may_write_in_local_mode_too(serve):
    site = serve(cors_origins=("https://tool.example",))
    answer = site.http.put("/v1/traces", content=CSV, headers={"Origin": "https://tool.example"})
    assert answer.status_code == 202
    problem(site.http.put("/v1/traces", content=CSV, headers={"Origin": "null"}), 403, "forbidden.origin")


def test_behind_a_proxy_that_ends_tls_and_rewrites_host(serve):
    site = serve(tenants=("a",), public_url="https://plans.example.org/")
    nobody = site.client(None)
    form = {"key": site.made.keys["a"], "next": "/"}
    answer = nobody.post("/login", data=form, headers={"Origin": "https://plans.example.org"})
    assert answer.status_code == 303
    assert "secure" in answer.headers["set-cookie"].lower()
    assert answer.headers["strict-transport-security"]
    assert nobody.post("/login", data=form, headers={"Origin": "https://evil.example"}).status_code == 403


def test_a_csv_export_disarms_formulas(local):
    document = plan_document()
    document["recommendations"][0]["gpu"] = "=HYPERLINK(1)"
    report_id = local.made.add_report(document=document)
    answer = local.http.get(f"/v1/reports/{report_id}.csv")
    assert answer.status_code == 200
    assert "'=HYPERLINK(1)" in answer.text
    assert not re.search(r"(^|,)\"?=", answer.text)
    assert answer.headers["content-disposition"] == f'attachment; filename="{report_id}.csv"'
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_html_is_escaped(local):
    document = plan_document(name="<script>alert(1)</script>")
    answer = local.http.get(f"/v1/reports/{local.made.add_report(document=document)}.html")
    assert answer.status_code == 200
    assert "<script>alert(1)</script>" not in answer.text


def test_no_key_and_no_row_is_in_the_logs(keyed):
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    with capture_logs() as lines:
        keyed.http.put("/v1/traces?name=mine", content=CSV)
        keyed.http.get("/v1/jobs")
        keyed.client("crp_" + "0" * 32 + "_topsecret").get("/v1/jobs")
        keyed.http.post("/v1/keys", json={"name": "n", "scopes": ["admin"]})
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    text = json.dumps(lines, default=str)
    assert "request" in text
    for secret in (keyed.made.keys["a"], keyed.made.keys["a"].split("_", 2)[2], "topsecret", "crp_", "ContextTokens"):
        assert secret not in text


def test_a_request_id_goes_from_the_request_to_the_job(local):
    body = local.http.put("/v1/traces", content=CSV, headers={"X-Request-Id": "trace-me-1"}).json()
    with local.made.services.database.read() as session:
        assert session.get(Job, body["ingest_job_id"]).request_id == "trace-me-1"


def test_secrets_are_stored_as_hashes_only(keyed):
    text = keyed.made.keys["a"]
    database = keyed.made.services.settings.data_dir
    stored = b"".join(path.read_bytes() for path in database.glob("capreplay.db*"))
    assert text.encode() not in stored
    assert text.split("_")[2].encode() not in stored


def test_a_remembered_key_answer_holds_no_secret(keyed):
    headers = {"Idempotency-Key": "make-key"}
    body = {"name": "n", "scopes": ["reports:read"]}
    text = keyed.http.post("/v1/keys", json=body, headers=headers).json()["key"]
    again = keyed.http.post("/v1/keys", json=body, headers=headers)
    assert again.json()["key"] is None
    stored = b"".join(p.read_bytes() for p in keyed.made.services.settings.data_dir.glob("capreplay.db*"))
    assert text.split("_")[2].encode() not in stored


def test_key_and_schedule_changes_leave_audit_rows(keyed):
    key = keyed.http.post("/v1/keys", json={"name": "n", "scopes": ["admin"]}).json()
    keyed.http.delete(f"/v1/keys/{key['id']}")
    schedule = {"name": "weekly", "cron": "0 6 * * 1", "plan": PLAN, "stream": "prod"}
    assert keyed.http.post("/v1/schedules", json=schedule).status_code == 201
    with keyed.made.services.database.read() as session:
        rows = session.scalars(select(AuditEvent).where(AuditEvent.tenant_id == keyed.made.tenants["a"])).all()
    about_key = [row for row in rows if row.subject_id == key["id"]]
    assert {row.action for row in about_key} == {"key.create", "key.revoke"}
    assert all(row.key_id for row in about_key)
    assert [row.action for row in rows if row.subject_id.startswith("sch_")] == ["schedule.create"]


def test_metrics_are_not_on_the_public_port(local):
    problem(local.http.get("/metrics"), 404)


def test_metrics_are_on_the_internal_port(serve):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    site = serve(metrics_port=port)
    site.http.get("/v1/jobs/job_" + "0" * 32)
    with client(f"http://127.0.0.1:{port}") as scraper:
        text = scraper.get("/metrics").text
    assert 'route="/v1/jobs/{job_id}",status="404"' in text
    assert "capreplay_oldest_queued_seconds" in text
    assert "capreplay_database_up 1.0" in text
    assert "job_0000" not in text


def test_the_interactive_pages_that_load_foreign_scripts_are_off(local):
    for path in ("/docs", "/redoc"):
        problem(local.http.get(path), 404)


def test_the_problem_schema_allows_nothing_else():
    assert Problem.model_config["extra"] == "forbid"
