"""schemathesis on the application in process: whatever the description allows or forbids, no answer is a surprise."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import schemathesis
from apptools import PLAN, calibration_document, client, live, make_app
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


@schemathesis.serializer("application/offset+octet-stream")
def _piece(_context, value):
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory, template):
    """The description of an application with something in it, and a key."""
    with ExitStack() as stack:
        made = stack.enter_context(make_app(tmp_path_factory.mktemp("fuzz"), template, tenants=("a",)))
        made.add_ready_trace("a")
        made.add_report("a")
        made.add_report("a", kind="replay")
        yield schemathesis.openapi.from_asgi("/openapi.json", made.app), made.keys["a"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{method}-{path}" for method, path in OPERATIONS])
def test_no_answer_is_a_surprise(fuzzed, method, path):
    schema, key = fuzzed
    operation = schema[path][method]
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    statuses = set()

    @given(case=st.one_of(*modes))
    @settings(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def fuzz(case):
        answer = case.call(headers={"Authorization": f"Bearer {key}"})
        case.validate_response(answer, checks=CHECKS)
        statuses.add(answer.status_code)
        if answer.status_code >= 400:
            assert answer.headers["content-type"][0] == "application/problem+json"
            assert b"Traceback" not in answer.content

    fuzz()
    assert statuses - {401}, "no case got past the key"


@pytest.fixture(scope="module")
def real(tmp_path_factory, template):
    """The description of an application, and ids of rows that are there."""
    with ExitStack() as stack:
        made = stack.enter_context(make_app(tmp_path_factory.mktemp("real"), template, tenants=("a",)))
        address = stack.enter_context(live(made.app))
        http = stack.enter_context(client(address, made.keys["a"]))
        trace_id = made.add_ready_trace("a", stream="prod")
        schedule = {"name": "n", "cron": "0 6 * * 1", "plan": PLAN, "stream": "prod"}
        schedule_id = http.post("/v1/schedules", json=schedule).json()["id"]
        http.post(f"/v1/schedules/{schedule_id}/run")
        ids = {
            "trace_id": trace_id,
            "job_id": http.post("/v1/plans", json={**PLAN, "trace_id": trace_id}).json()["id"],
            "report_id": made.add_report("a", kind="replay"),
            "schedule_id": schedule_id,
            "calibration_id": http.post("/v1/calibrations", json={"calibration": calibration_document()}).json()["id"],
            "key_id": http.get("/v1/keys").json()["items"][0]["id"],
        }
        http.post(f"/v1/jobs/{ids['job_id']}/cancel")  # an event stream of a live job does not end
        yield schemathesis.openapi.from_asgi("/openapi.json", made.app), made.keys["a"], ids


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "get"])
def test_what_is_there_is_answered_as_described(real, path):
    schema, key, ids = real
    known = {**ids, "key": "meta-llama/Llama-3.1-8B-Instruct" if "model" in path else "H100-SXM"}
    names = [name for name in known if "{" + name + "}" in path]
    case = schema[path]["get"].Case(path_parameters={name: known[name] for name in names})
    answer = case.call(headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.content[:300]
    case.validate_response(answer, checks=CHECKS)


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/replays", "/v1/schedules"])
def test_a_specification_that_is_described_is_started_or_refused_with_a_reason(real, path):
    """Bodies as the description allows them, but on a trace, a model and GPU types that are there."""
    schema, key, ids = real
    statuses = set()

    @given(case=schema[path]["post"].as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def fuzz(case):
        body = case.body
        there = {"model": "meta-llama/Llama-3.1-8B-Instruct", "engine": {"preset": "vllm-0.33"}}
        there |= {"weight_dtype": None, "kv_dtype": None}
        there |= {"calibration": "auto"} if path != "/v1/replays" else {}
        there |= {"gpu": "H100-SXM"} if path == "/v1/replays" else {"gpus": ["H100-SXM", "L40S"]}
        body["trace_id"] = ids["trace_id"]
        if path == "/v1/replays":
            body["calibration"] = "auto"
        if path == "/v1/schedules":
            body |= {"cron": "0 6 * * 1", "zone": "UTC", "stream": None}
        {"/v1/plans": body, "/v1/replays": body.get("deployment"), "/v1/schedules": body.get("plan")}[path].update(
            there
        )
        answer = case.call(headers={"Authorization": f"Bearer {key}"})
        case.validate_response(answer, checks=CHECKS)
        statuses.add(answer.status_code)
        if answer.status_code == 422:
            assert json.loads(answer.content)["errors"] or json.loads(answer.content)["detail"]

    fuzz()
    assert statuses <= {201, 202, 422, 429}, statuses
    assert statuses & {201, 202}, statuses
