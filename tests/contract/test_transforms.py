"""Transforms that cannot fit their trace are refused when they are asked for; other traces can be mixed in."""

from typing import Any

import pytest
from apptools import PLAN, REPLAY, problem

from models.tables import Job

HEAD = "arrival_s,prompt_tokens,output_tokens,tenant,session\n"
NAMED = (HEAD + "".join(f"{i},{400 + i},20,{'ab'[i % 2]},s{i % 5}\n" for i in range(60))).encode()
WEST = (HEAD + "".join(f"{i * 0.5},900,10,acme,s{i % 5}\n" for i in range(60))).encode()
CHAIN = (
    b'{"timestamp": 0, "session_id": "s", "input_length": 100, "output_length": 5, "hash_ids": [1]}\n'
    b'{"delay": 700, "session_id": "s", "input_length": 100, "output_length": 5, "hash_ids": [1]}\n'
)

MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "a window after the end": ({"window_start_s": 100.0}, "the trace's last request arrives at 59 s"),
    "a busiest window longer than the trace": ({"busiest_window_s": 3600.0}, "the trace lasts 59 s"),
    "clock times of a trace without": ({"window_from": "2026-03-02T09:00:00Z"}, "no clock times"),
    "an absent tenant": ({"tenants": ["c"]}, "the trace has a, b"),
    "growth of an absent tenant": ({"tenant_growth": {"c": 2}}, "the trace has a, b"),
    "prefixes of a trace without blocks": ({"prefix_sharing": 0.5}, "no prefix block ids"),
    "nothing left to score": ({"warmup_s": 40, "cooldown_s": 40}, "the window is 59 s long"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_the_trace_has_not_is_refused_at_once(local, name):
    transform, says = MISFITS[name]
    trace_id = local.made.add_ready_trace(content=NAMED, stream="prod")
    schedule = {"name": "s", "cron": "0 4 * * *", "zone": "UTC"}
    for address, body in (
        ("/v1/plans", {**PLAN, "trace_id": trace_id, "transform": transform}),
        ("/v1/replays", {**REPLAY, "trace_id": trace_id, "transform": transform}),
        ("/v1/schedules", {**schedule, "trace_id": trace_id, "plan": {**PLAN, "transform": transform}}),
        ("/v1/schedules", {**schedule, "stream": "prod", "plan": {**PLAN, "transform": transform}}),
    ):
        refused = problem(local.http.post(address, json=body), 422)
        assert says in refused["detail"]
        fault = refused["errors"][0]
        assert fault["field"].removeprefix("transform.") in transform
        assert fault["cure"]
    assert local.http.get("/v1/jobs").json()["items"] == []


def test_more_requests_than_a_replay_takes_are_refused_at_once(local):
    many = (HEAD + "".join(f"{i * 0.5},{400 + i},20,a,s\n" for i in range(1200))).encode()
    trace_id = local.made.add_ready_trace(content=many)
    change = {"growth": 1000, "agent_steps": 100}
    for address, body in (("/v1/plans", PLAN), ("/v1/replays", REPLAY)):
        asked = {**body, "trace_id": trace_id, "transform": change}
        refused = problem(local.http.post(address, json=asked), 422, "workload.too_many_requests")
        assert refused["errors"][0]["field"] == "transform.growth"
        assert "120,000,000 requests or more; one replay takes 100,000,000" in refused["detail"]


def test_a_schedule_is_not_changed_to_what_its_trace_has_not(local):
    long, short = local.made.add_ready_trace(content=NAMED), local.made.add_ready_trace(content=WEST)
    body = {"name": "s", "cron": "0 4 * * *", "zone": "UTC", "trace_id": long}
    plan = {**PLAN, "transform": {"window_start_s": 50.0}}
    made = local.http.post("/v1/schedules", json={**body, "plan": plan})
    assert made.status_code == 201
    address, match = f"/v1/schedules/{made.json()['id']}", {"If-Match": made.headers["etag"]}
    problem(local.http.patch(address, json={"trace_id": short}, headers=match), 422, "workload.window")
    change = {"plan": {**PLAN, "transform": {"tenants": ["nobody"]}}}
    problem(local.http.patch(address, json=change, headers=match), 422, "workload.tenants")
    assert local.http.get(address).json()["trace_id"] == long
    local.made.add_ready_trace(content=WEST, stream="west")
    problem(local.http.patch(address, json={"stream": "west"}, headers=match), 422, "workload.window")
    assert local.http.patch(address, json={"stream": "later"}, headers=match).status_code == 200


def test_what_a_schedule_asks_beside_its_trace_is_checked_before_the_stream_has_one(local):
    body = {"name": "s", "cron": "0 4 * * *", "zone": "UTC", "stream": "later"}
    for change, code in (
        ({"calibration": "cal_" + "0" * 32}, "calibration.unknown"),
        ({"transform": {"mix_with": [{"trace": "trc_x"}]}}, "trace.unknown"),
    ):
        asked = local.http.post("/v1/schedules", json={**body, "plan": {**PLAN, **change}})
        fault = problem(asked, 422, code)["errors"][0]
        assert fault["field"]
        assert fault["cure"]
    assert local.http.post("/v1/schedules", json={**body, "plan": PLAN}).status_code == 201


def _spec(local, job_id):
    with local.made.services.database.read() as session:
        return session.get(Job, job_id).spec


def test_the_load_of_another_trace_is_added(local):
    east, west = local.made.add_ready_trace(content=NAMED), local.made.add_ready_trace(content=WEST, name="west")
    mixed = [{"trace": west, "share": 0.5}]
    transform = {"mix_with": mixed, "tenant_growth": {"west/acme": 2}}
    body = {**REPLAY, "trace_id": east, "transform": transform, "seed": 3}
    job = local.http.post("/v1/replays", json=body).json()
    stored = _spec(local, job["id"])["replay"]
    assert stored["spec"]["transform"]["mix_with"] == [{"trace": west, "name": "west", "share": 0.5}]
    assert [one["name"] for one in stored["mixed"]] == ["west"]
    problem(local.http.delete(f"/v1/traces/{west}"), 409, "trace.in_use")
    assert local.made.work(job["id"]) == "succeeded"
    report_id = local.http.get(f"/v1/jobs/{job['id']}").json()["report_id"]
    notes = " ".join(local.http.get(f"/v1/reports/{report_id}").json()["workload"]["notes"])
    assert "Mixed from 2 traces, not recorded together: 60 of the trace and" in notes
    assert "whole sessions drawn with a share of 0.5 of 60, seed 3" in notes
    assert "tenant west/acme times 2" in notes.lower()
    assert local.http.delete(f"/v1/traces/{west}").status_code == 204


def test_a_schedule_keeps_the_trace_that_it_mixes_in(local):
    east, west = local.made.add_ready_trace(content=NAMED), local.made.add_ready_trace(content=WEST, name="west")
    plan = {**PLAN, "transform": {"mix_with": [{"trace": west}]}}
    body = {"name": "s", "cron": "0 4 * * *", "zone": "UTC", "trace_id": east, "plan": plan}
    assert local.http.post("/v1/schedules", json=body).status_code == 201
    problem(local.http.delete(f"/v1/traces/{west}"), 409, "trace.in_use")


def test_tenants_of_a_mixed_trace_are_named_as_its_file_did(local):
    east = local.made.add_ready_trace(content=NAMED)
    made = local.http.put("/v1/traces?name=west", content=WEST).json()
    assert local.made.work(made["ingest_job_id"]) == "succeeded"
    transform = {"mix_with": [{"trace": made["id"]}], "without_tenants": ["west/acme"]}
    job = local.http.post("/v1/replays", json={**REPLAY, "trace_id": east, "transform": transform}).json()
    (label,) = _spec(local, job["id"])["replay"]["spec"]["transform"]["without_tenants"]
    assert label.startswith("west/t_")
    body = {**REPLAY, "trace_id": east, "transform": {**transform, "without_tenants": ["west/nobody"]}}
    refused = problem(local.http.post("/v1/replays", json=body), 422, "workload.tenants")
    assert "'west/nobody'" in refused["detail"]


@pytest.mark.parametrize(
    ("content", "change", "code", "says"),
    [
        (CHAIN, {}, "trace.mix", "only when another has ended"),
        (WEST, {"mix_align": "clock"}, "trace.mix", "no clock times"),
        (WEST, {"mix_with": [{"trace": "trc_x"}]}, "trace.unknown", "there is no trace 'trc_x'"),
        (WEST, {"mix_with": []}, "validation", "mix_align"),
    ],
)
def test_traces_that_cannot_be_mixed_are_refused_at_once(local, content, change, code, says):
    east, west = local.made.add_ready_trace(content=NAMED), local.made.add_ready_trace(content=content, name="west")
    transform = {"mix_with": [{"trace": west}], **change}
    if code == "validation":
        transform["mix_align"] = "clock"
    for address, body in (("/v1/plans", PLAN), ("/v1/replays", REPLAY)):
        sent = local.http.post(address, json={**body, "trace_id": east, "transform": transform})
        refused = problem(sent, 422, code)
        assert says in refused["detail"]
        assert refused["errors"][0]["field"].startswith("transform")


def test_a_trace_that_is_still_read_cannot_be_mixed_in(local):
    east = local.made.add_ready_trace(content=NAMED)
    west = local.http.put("/v1/traces", content=WEST).json()["id"]
    body = {**REPLAY, "trace_id": east, "transform": {"mix_with": [{"trace": west}]}}
    problem(local.http.post("/v1/replays", json=body), 409, "trace.not_ready")
