"""What each resource answers, over HTTP: traces, jobs and their events, reports, catalogue, schedules, keys."""

import json
import threading
from datetime import datetime

import pytest
from apptools import CSV, PLAN, problem
from report_documents import plan_document

from models.tables import Job

SCHEDULE = {"name": "weekly", "cron": "0 6 * * 1", "zone": "Europe/Berlin", "plan": PLAN, "stream": "prod"}
GPU = {
    "key": "my-gpu",
    "vendor": "ours",
    "memory_spec_gb": 48,
    "memory_total_gib": 44.5,
    "mem_bw_gb_per_s": 900,
    "fp16_tflops": 200,
    "source": "our data sheet",
    "date": "2026-11-29",
}
PRICE = {
    "id": "rack-1",
    "provider": "own rack",
    "gpu": "H100-SXM",
    "gpus_per_instance": 8,
    "region": "cellar",
    "usd_per_instance_hour": 20,
    "date": "2026-11-29",
    "source": "finance",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


# Traces


def test_a_ready_trace_has_a_cleaning_report_and_a_profile(local):
    trace_id = local.made.add_ready_trace()
    trace = local.http.get(f"/v1/traces/{trace_id}").json()
    assert (trace["status"], trace["requests"]) == ("ready", 60)
    assert trace["prompt_tokens"] == sum(400 + second for second in range(60))
    report = local.http.get(f"/v1/traces/{trace_id}/cleaning-report").json()
    cleaning = report["cleaning"]
    assert cleaning["rows_read"] == cleaning["rows_kept"] + sum(cleaning["rejected_by_rule"].values()) == 60
    assert report["format"] == trace["format"]
    assert report["why"]
    profile = local.http.get(f"/v1/traces/{trace_id}/profile").json()["profile"]
    assert profile["requests"] == 60
    assert profile["prompt_tokens"]["max"] == 459


def test_a_profile_counts_the_requests_too_long_for_a_model(local):
    rows = "".join(f"{i},{prompt},100\n" for i, prompt in enumerate((1000, 5000, 9000, 200_000)))
    trace_id = local.made.add_ready_trace(content=b"arrival_s,prompt_tokens,output_tokens\n" + rows.encode())
    address = f"/v1/traces/{trace_id}/profile"
    assert local.http.get(address).json()["model_fit"] is None
    fit = local.http.get(address, params={"model": "meta-llama/Meta-Llama-3-8B"}).json()["model_fit"]
    assert fit == {
        "model": "meta-llama/Meta-Llama-3-8B", "max_model_len": 8192, "longer_at_least": 2, "longer_at_most": 2
    }  # fmt: skip
    unknown = problem(local.http.get(address, params={"model": "meta-llama/Meta-Llama-3-9B"}), 422)
    assert "Meta-Llama-3-8B" in unknown["detail"]


def test_a_deleted_trace_is_gone(local):
    trace_id = local.made.add_ready_trace()
    assert local.http.delete(f"/v1/traces/{trace_id}").status_code == 204
    problem(local.http.get(f"/v1/traces/{trace_id}"), 404)


def test_a_trace_in_use_is_not_deleted(local):
    trace_id = local.made.add_ready_trace()
    local.http.post("/v1/plans", json={**PLAN, "trace_id": trace_id})
    problem(local.http.delete(f"/v1/traces/{trace_id}"), 409)


def test_traces_are_listed_by_stream(local):
    mine = local.made.add_ready_trace(stream="prod")
    local.made.add_ready_trace(stream="test")
    assert [trace["id"] for trace in local.http.get("/v1/traces?stream=prod").json()["items"]] == [mine]


# Jobs


def test_jobs_are_listed_by_status_kind_and_trace(local):
    trace_id = f"trc_{'1' * 32}"
    first = local.made.add_job(trace_id=trace_id)
    second = local.made.add_job(status="succeeded", kind="replay")
    listed = lambda query: [job["id"] for job in local.http.get(f"/v1/jobs?{query}").json()["items"]]  # noqa: E731
    assert listed("status=queued") == [first]
    assert listed("kind=replay") == [second]
    assert listed(f"trace_id={trace_id}") == [first]
    problem(local.http.get("/v1/jobs?status=done"), 422)


def test_a_failed_job_says_why_with_line_column_rule_and_cure(local):
    errors = [
        {"detail": "not a number", "line": 7, "column": "ContextTokens", "rule": "tokens.number", "cure": "fix it"}
    ]
    job_id = local.made.add_job(
        kind="ingest", status="failed", error_code="trace.rejected", error_detail="too many bad rows", errors=errors
    )
    error = local.http.get(f"/v1/jobs/{job_id}").json()["error"]
    assert error["code"] == "trace.rejected"
    assert error["errors"][0] == {**errors[0], "field": None}


def test_a_finished_job_has_no_retry_after_and_its_report(local):
    report_id = local.made.add_report()
    job_id = local.http.get("/v1/reports").json()["items"][0]["job_id"]
    answer = local.http.get(f"/v1/jobs/{job_id}")
    assert "retry-after" not in answer.headers
    assert answer.json()["report_id"] == report_id


def test_the_list_of_jobs_says_which_reports_they_have(local):
    report_id = local.made.add_report()
    waiting = local.made.add_job()
    listed = {job["id"]: job["report_id"] for job in local.http.get("/v1/jobs").json()["items"]}
    done = local.http.get("/v1/reports").json()["items"][0]["job_id"]
    assert listed == {done: report_id, waiting: None}


def test_a_cancelled_job_stays_cancelled(local):
    job_id = local.made.add_job()
    for _ in range(2):
        answer = local.http.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.status_code == 202
        assert answer.json()["status"] == "cancelled"
        assert answer.headers["location"] == f"/v1/jobs/{job_id}"


def test_a_finished_job_cannot_be_cancelled(local):
    problem(local.http.post(f"/v1/jobs/{local.made.add_job(status='succeeded')}/cancel"), 409, "job.finished")


def test_events_follow_a_job_to_its_end(local):
    job_id = local.made.add_job()
    database = local.made.services.database
    events = []
    with local.http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                status = {1: "running", 2: "succeeded"}.get(len(events))
                if status is not None:
                    with database.write() as session:
                        job = session.get(Job, job_id)
                        job.status, job.progress = status, len(events) / 2
    assert [(event["status"], event["progress"]) for event in events] == [
        ("queued", 0.0),
        ("running", 0.5),
        ("succeeded", 1.0),
    ]
    context = local.made.app.state.context
    _wait_until(lambda: context.streams._open.total() == 0)


def test_a_stream_gives_its_slot_back_when_the_client_leaves(local):
    job_id = local.made.add_job()
    context = local.made.app.state.context
    with local.http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        lines = stream.iter_lines()  # held: closing it would close the line
        next(lines)
        assert context.streams._open.total() == 1
    _wait_until(lambda: context.streams._open.total() == 0)


# Reports


def test_a_report_is_its_document_byte_for_byte(local):
    report_id = local.made.add_report()
    answer = local.http.get(f"/v1/reports/{report_id}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == json.dumps(plan_document()).encode()
    assert answer.headers["vary"] == "Accept"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html"),
        ("text/csv", "text/csv"),
        ("text/*", "text/html"),
        ("text/html;q=0.1, text/csv;q=0.9", "text/csv"),
        ("application/*", "application/json"),
    ],
)
def test_a_report_comes_as_the_client_likes(local, accept, kind):
    answer = local.http.get(f"/v1/reports/{local.made.add_report()}", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == kind


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "nonsense", "text/html;q=nan"])
def test_a_form_that_does_not_exist_is_406(local, accept):
    problem(local.http.get(f"/v1/reports/{local.made.add_report()}", headers={"Accept": accept}), 406)


@pytest.mark.parametrize("kind", ["plan", "replay"])
def test_a_report_downloads_as_html_and_csv(local, kind):
    report_id = local.made.add_report(kind=kind)
    page = local.http.get(f"/v1/reports/{report_id}.html")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.text.lstrip().lower().startswith("<!doctype html>")
    assert 'src="/static' not in page.text  # it opens offline
    table = local.http.get(f"/v1/reports/{report_id}.csv")
    assert table.headers["content-type"].startswith("text/csv")
    assert len(table.text.splitlines()) >= 2


def test_the_request_table_of_a_replay_downloads(local):
    report_id = local.made.add_report(kind="replay")
    answer = local.http.get(f"/v1/reports/{report_id}/requests.parquet")
    assert answer.content == b"PAR1 table"
    problem(local.http.get(f"/v1/reports/{local.made.add_report()}/requests.parquet"), 404)


def test_reports_are_listed_by_kind(local):
    local.made.add_report()
    replay = local.made.add_report(kind="replay", document=None)
    assert [row["id"] for row in local.http.get("/v1/reports?kind=replay").json()["items"]] == [replay]


def test_a_deleted_report_is_gone(local):
    report_id = local.made.add_report(kind="replay")
    job_id = local.http.get("/v1/reports").json()["items"][0]["job_id"]
    assert local.http.delete(f"/v1/reports/{report_id}").status_code == 204
    problem(local.http.get(f"/v1/reports/{report_id}"), 404)
    problem(local.http.delete(f"/v1/reports/{report_id}"), 404)
    assert local.http.get(f"/v1/jobs/{job_id}").json()["report_id"] is None


# Catalogue


def test_entries_name_their_source_and_origin(local):
    for path in ("gpu-types", "model-specs", "prices"):
        items = local.http.get(f"/v1/{path}?limit=200").json()["items"]
        assert len(items) > 20
        assert all(item["source"] and item["origin"] == "shipped" for item in items)


def test_a_gpu_type_of_ones_own_is_added_replaced_and_removed(local):
    first = local.http.post("/v1/gpu-types", json=GPU)
    assert (first.status_code, first.json()["origin"]) == (201, "own")
    assert first.headers["location"] == "/v1/gpu-types/my-gpu"
    assert local.http.post("/v1/gpu-types", json={**GPU, "fp16_tflops": 300}).status_code == 200
    assert local.http.get("/v1/gpu-types/MY-GPU").json()["fp16_tflops"] == 300
    assert local.http.delete("/v1/gpu-types/my-gpu").status_code == 204
    problem(local.http.get("/v1/gpu-types/my-gpu"), 404)
    problem(local.http.delete("/v1/gpu-types/H100-SXM"), 404)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"key": "../x"}, "key"),
        ({"key": "x" * 101}, "key"),
        ({"memory_total_gib": 0}, "memory_total_gib"),
        ({"memory_total_gib": 1e300}, "memory_total_gib"),
        ({"mem_bw_gb_per_s": -1}, "mem_bw_gb_per_s"),
        ({"source": ""}, "source"),
        ({"date": "yesterday"}, "date"),
        ({"aliases": ["a"] * 21}, "aliases"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_gpu_type_is_refused(local, change, field):
    found = problem(local.http.post("/v1/gpu-types", json={**GPU, **change}), 422, "validation")
    assert field in {error["field"].split(".")[0] for error in found["errors"]}


def test_a_model_comes_from_its_config(local):
    answer = local.http.post("/v1/model-specs", json={"key": "us/tiny", "config": CONFIG})
    assert answer.status_code == 201
    model = local.http.get("/v1/model-specs/us/tiny").json()
    assert (model["num_layers"], model["num_key_value_heads"], model["head_dim"]) == (4, 4, 64)
    assert (model["origin"], model["source"]) == ("own", "config.json uploaded over the API")
    assert local.http.delete("/v1/model-specs/us/tiny").status_code == 204
    problem(local.http.get("/v1/model-specs/us/tiny"), 404)


def test_a_config_that_lacks_a_field_names_it(local):
    config = {name: value for name, value in CONFIG.items() if name != "num_hidden_layers"}
    found = problem(local.http.post("/v1/model-specs", json={"key": "us/tiny", "config": config}), 422)
    assert "num_hidden_layers" in json.dumps(found)


@pytest.mark.parametrize("value", [-1, 0, "four", None, [4], {"a": 1}, 1.5, 2**62, True])
def test_a_config_with_an_impossible_value_is_refused(local, value):
    config = {**CONFIG, "num_hidden_layers": value}
    problem(local.http.post("/v1/model-specs", json={"key": "us/tiny", "config": config}), 422)


def test_a_price_of_ones_own_is_by_gpu_hour(local):
    answer = local.http.post("/v1/prices", json=PRICE)
    assert answer.status_code == 201
    assert answer.json()["usd_per_gpu_hour"] == 2.5
    listed = local.http.get("/v1/prices", params={"provider": "Own Rack", "gpu": "h100-sxm"}).json()["items"]
    assert [price["id"] for price in listed] == ["rack-1"]
    problem(local.http.get("/v1/prices?gpu=nonsense"), 422, "catalogue.unknown_gpu")
    assert local.http.delete("/v1/prices/rack-1").status_code == 204


def test_a_price_of_an_unknown_gpu_is_refused(local):
    problem(local.http.post("/v1/prices", json={**PRICE, "gpu": "nonsense"}), 422, "catalogue.unknown_gpu")


def test_engines_list_presets_and_knobs(local):
    body = local.http.get("/v1/engines").json()
    assert {"vllm-0.33", "vllm-0.11", "static"} <= {engine["key"] for engine in body["items"]}
    knobs = {knob["name"]: knob for knob in body["knobs"]}
    assert knobs["max_num_seqs"] == {"name": "max_num_seqs", "type": "int", "low": 1.0, "high": 65536.0, "choices": []}
    assert knobs["async_scheduling"]["low"] is None


def test_a_near_miss_names_the_nearest(local):
    found = problem(local.http.get("/v1/model-specs/meta-llama/Llama-3.1-8B-Instrukt"), 404)
    assert "Llama-3.1-8B" in found["detail"]


# Start-up logs


def test_a_start_up_log_is_read(local):
    log = (
        "vLLM API server version 0.11.0\nnon-default args: {'model': '/models/x'}\nGPU KV cache size: 400,000 tokens\n"
    )
    answer = local.http.post("/v1/start-up-logs", json={"log": log})
    assert answer.status_code == 200
    assert answer.json()["found"]["kv_tokens"] == {"value": 400_000, "line": 3}
    assert answer.json()["deployment"]["engine"]["overrides"] == {"num_gpu_blocks_override": 25_000, "block_size": 16}
    found = problem(local.http.post("/v1/start-up-logs", json={"log": "nothing"}), 422, "start_up_log.unknown")
    assert found["errors"][0]["field"] == "log"


# Schedules


def test_a_schedule_lives(local):
    trace_id = local.made.add_ready_trace(stream="prod")
    made = local.http.post("/v1/schedules", json=SCHEDULE)
    assert made.status_code == 201
    path = made.headers["location"]
    assert datetime.fromisoformat(made.json()["next_run_at"]).utcoffset().total_seconds() == 0
    run = local.http.post(f"{path}/run")
    assert run.status_code == 202
    assert run.json()["trigger"] == "manual"
    job = local.http.get(run.headers["location"]).json()
    assert (job["kind"], job["trace_id"], job["schedule_id"]) == ("plan", trace_id, made.json()["id"])
    (listed,) = local.http.get(f"{path}/runs").json()["items"]
    assert (listed["job_id"], listed["job_status"]) == (job["id"], "queued")
    assert local.http.delete(path).status_code == 204
    problem(local.http.get(path), 404)
    assert local.http.get(f"/v1/jobs/{job['id']}").status_code == 200


def test_a_run_without_a_ready_trace_is_409(local):
    path = local.http.post("/v1/schedules", json=SCHEDULE).headers["location"]
    problem(local.http.post(f"{path}/run"), 409)


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "not a cron text"},
        {"cron": "99 6 * * 1"},
        {"zone": "Mars/Olympus"},
        {"zone": "../../etc/passwd"},
        {"stream": None},
        {"trace_id": f"trc_{'0' * 32}"},
        {"stream": "a b"},
        {"plan": {**PLAN, "gpus": ["nonsense"]}},
        {"plan": {**PLAN, "x": 1}},
        {"name": ""},
    ],
)
def test_a_bad_schedule_is_refused(local, change):
    problem(local.http.post("/v1/schedules", json={**SCHEDULE, **change}), 422)


def test_an_empty_change_is_refused(local):
    made = local.http.post("/v1/schedules", json=SCHEDULE)
    problem(local.http.patch(made.headers["location"], json={}, headers={"If-Match": made.headers["etag"]}), 422)


# Keys


def test_a_key_lives(keyed):
    made = keyed.http.post("/v1/keys", json={"name": "ci", "scopes": ["traces:write"], "expires_in_days": 30})
    assert made.status_code == 201
    body = made.json()
    assert body["key"].startswith("crp_")
    read = keyed.http.get(made.headers["location"]).json()
    assert "key" not in read
    assert read["scopes"] == ["traces:write"]
    holder = keyed.client(body["key"])
    assert holder.put("/v1/traces", content=CSV).status_code == 202
    rotated = keyed.http.post(f"{made.headers['location']}/rotate", json={"grace_hours": 0})
    assert rotated.status_code == 201
    problem(holder.put("/v1/traces", content=CSV), 401)
    assert keyed.client(rotated.json()["key"]).put("/v1/traces", content=CSV).status_code == 202
    assert keyed.http.get(made.headers["location"]).json()["replaced_by"] == rotated.json()["id"]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": []},
        {"name": "", "scopes": ["admin"]},
        {"name": "x", "scopes": ["admin"], "expires_in_days": 0},
        {"name": "x", "scopes": ["admin"], "expires_in_days": 10**9},
    ],
)
def test_a_bad_key_request_is_refused(keyed, body):
    problem(keyed.http.post("/v1/keys", json=body), 422, "validation")


def _wait_until(condition) -> None:
    done = threading.Event()
    for _ in range(500):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError("it did not come to pass")
