"""A trace holds labels in place of its tenants' names; what-ifs may still name a tenant as the file did."""

from apptools import PLAN, REPLAY, problem

from models.tables import Job

ROWS = "".join(f"{second},{400 + second},20,{'acme' if second % 2 else 'other'}\n" for second in range(60))
CSV = f"arrival_s,prompt_tokens,output_tokens,tenant\n{ROWS}".encode()


def _ready(site, query=""):
    made = site.http.put(f"/v1/traces{query}", content=CSV).json()
    assert site.made.work(made["ingest_job_id"]) == "succeeded"
    return made["id"]


def _spec(site, job_id):
    with site.made.services.database.read() as session:
        return session.get(Job, job_id).spec


def test_a_tenant_is_named_as_the_file_did_or_by_its_label(local):
    trace_id = _ready(local)
    transform = {"tenants": ["acme"], "tenant_growth": {"acme": 2.0}}
    job = local.http.post("/v1/replays", json={**REPLAY, "trace_id": trace_id, "transform": transform}).json()
    stored = str(_spec(local, job["id"]))
    assert "acme" not in stored
    assert local.made.work(job["id"]) == "succeeded"
    report = local.http.get(f"/v1/reports/{local.http.get('/v1/jobs/' + job['id']).json()['report_id']}").json()
    assert "acme" not in str(report)
    (label,) = [row["name"] for row in report["splits"][0]["rows"]] if "splits" in report else [None]
    plan = {**PLAN, "trace_id": trace_id, "transform": {"tenants": ["acme"]}}
    assert "acme" not in str(_spec(local, local.http.post("/v1/plans", json=plan).json()["id"]))
    assert label is None or label.startswith("t_")


def test_kept_names_stay(local):
    trace_id = _ready(local, "?ids=keep")
    body = {**REPLAY, "trace_id": trace_id, "transform": {"without_tenants": ["acme"]}}
    job = local.http.post("/v1/replays", json=body).json()
    assert "acme" in str(_spec(local, job["id"]))


def test_an_unknown_tenant_is_said_to_be_unknown(local):
    trace_id = _ready(local)
    job = local.http.post("/v1/replays", json={**REPLAY, "trace_id": trace_id, "transform": {"tenants": ["nobody"]}})
    if job.status_code != 202:
        problem(job, 422)
        return
    assert local.made.work(job.json()["id"]) == "failed"
