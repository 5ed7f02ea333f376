"""Specifications that are odd but allowed: each job ends with an answer, or with a reason that is not 'internal'."""

from contextlib import ExitStack

import pytest
from apptools import PLAN, REPLAY, start_site
from sqlalchemy import select

from models.tables import Job

ODD_PLANS = {
    "a context longer than the model's": {"max_model_len": 2**62},
    "a context of one token": {"max_model_len": 1},
    "a threshold that nothing meets": {"objectives": [{"metric": "ttft", "threshold_s": 1e-300}]},
    "a threshold that everything meets": {"objectives": [{"metric": "e2e", "percentile": None, "threshold_s": 1e300}]},
    "the 99.999999th percentile": {"objectives": [{"metric": "itl", "percentile": 99.999999, "threshold_s": 5}]},
    "a window after the trace": {"transform": {"window_start_s": 1e9}},
    "a window of nothing": {"transform": {"window_start_s": 0.1, "window_end_s": 0.1000001}},
    "almost no load": {"transform": {"growth": 1e-12}},
    "a budget of nothing": {"max_usd_per_hour": 1e-300},
    "one GPU at most": {"max_gpus": 1, "tp": [2]},
    "a tensor-parallel size that divides nothing": {"tp": [7, 13, 64]},
    "an unknown precision": {"weight_dtype": "fp3"},
    "an unknown KV precision": {"kv_dtype": "x" * 300},
    "a price of its own": {"price": {"usd_per_gpu_hour": {"H100-SXM": 1e300}}},
    "a price of a GPU nobody asked for": {"price": {"usd_per_gpu_hour": {"nonsense": 1.0}}},
    "a provider that sells nothing": {"price": {"provider": "nobody"}},
    "the same GPU twice": {"gpus": ["H100-SXM", "h100-sxm"]},
    "the same size twice": {"tp": [1, 1]},
    "a GPU that holds no weights": {"model": "meta-llama/Llama-3.1-405B-Instruct", "gpus": ["T4"]},
    "a knob at its end": {"engine": {"overrides": {"max_num_seqs": 1, "max_num_batched_tokens": 1}}},
    "one block of KV": {"engine": {"overrides": {"num_gpu_blocks_override": 2}}},
    "hardly any memory": {"engine": {"overrides": {"gpu_memory_utilization": 0.01}}},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory, template):
    with ExitStack() as stack:
        yield start_site(stack, tmp_path_factory.mktemp("odd"), template, {"max_live_jobs": 10_000})


def _work_off(site) -> None:
    while True:
        with site.made.services.database.read() as session:
            waiting = select(Job.id).where(Job.status == "queued", Job.kind != "plan").order_by(Job.created_at)
            job_id = session.scalars(waiting).first()
        if job_id is None:
            return
        site.made.work(job_id)


@pytest.mark.parametrize("name", ODD_PLANS)
def test_an_odd_plan_ends_with_an_answer_or_a_reason(site, name):
    body = {**PLAN, "tp": [1], "name": name, **ODD_PLANS[name], "trace_id": site.made.add_ready_trace()}
    answer = site.http.post("/v1/plans", json=body)
    if answer.status_code == 422:
        assert answer.json()["detail"]
        assert answer.json()["code"] != "internal"
        return
    assert answer.status_code == 202, answer.text
    _work_off(site)
    job = site.http.get(answer.headers["location"]).json()
    if job["status"] == "failed":
        assert job["error"]["code"] not in ("internal", "worker_lost"), job["error"]
        assert job["error"]["detail"]
        return
    assert job["status"] == "succeeded"
    report = site.http.get(f"/v1/reports/{job['report_id']}").json()
    assert report["recommendations"] or report["infeasible"]
    for row in report["infeasible"]:
        assert row["reason"]
    for form in ("html", "csv"):
        assert site.http.get(f"/v1/reports/{job['report_id']}.{form}").status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 3},
        {"replicas": 4096},
        {"max_model_len": 2**62},
        {"max_model_len": 16},
        {"router": "least_outstanding", "replicas": 7},
        {"weight_dtype": "fp8", "kv_dtype": "fp8"},
        {"engine": {"preset": "static"}},
        {"engine": {"preset": "vllm-0.19.0"}},
    ],
)
def test_an_odd_replay_ends_with_an_answer_or_a_reason(site, change):
    body = {**REPLAY, "trace_id": site.made.add_ready_trace()}
    body["deployment"] = {**body["deployment"], **change}
    answer = site.http.post("/v1/replays", json=body)
    if answer.status_code == 422:
        assert answer.json()["errors"][0]["cure"]
        return
    assert answer.status_code == 202, answer.text
    _work_off(site)
    job = site.http.get(answer.headers["location"]).json()
    if job["status"] == "failed":
        assert job["error"]["code"] not in ("internal", "worker_lost"), job["error"]
        return
    assert job["status"] == "succeeded"
    assert site.http.get(f"/v1/reports/{job['report_id']}/requests.parquet").content[:4] == b"PAR1"
