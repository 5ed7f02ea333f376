"""Calibrations over REST: finished ones are kept, measurements are fitted by a job, and what cannot be is refused."""

import json

import pytest
from apptools import REPLAY, calibration_document, problem
from measurement_files import HEAD, TRUTH, table

from models.tables import Blob, Job, JobFile

SERVER = {"model": "Qwen/Qwen3-14B", "gpu": "H100-SXM", "engine": {"preset": "vllm-0.11"}}


def test_a_calibration_is_kept_and_used_for_its_deployment(local):
    made = local.http.post("/v1/calibrations", json={"calibration": calibration_document()})
    assert made.status_code == 201
    path = made.headers["location"]
    assert local.http.get(path).json() == made.json()
    assert made.json()["calibration_id"].startswith("user/")
    assert [one["id"] for one in local.http.get("/v1/calibrations").json()["items"]] == [made.json()["id"]]
    trace_id = local.made.add_ready_trace()

    def asked(**more):
        body = {"trace_id": trace_id, **REPLAY, **more}
        answer = local.http.post("/v1/replays", json=body)
        assert answer.status_code == 202, answer.text
        with local.made.services.database.read() as session:
            return session.get(Job, answer.json()["id"]).spec["replay"]

    model = REPLAY["deployment"]["model"]
    mine = calibration_document(
        deployment=calibration_document()["deployment"] | {"model": model, "gpu": REPLAY["deployment"]["gpu"]}
    )
    own = local.http.post("/v1/calibrations", json={"calibration": mine}).json()
    assert [one["base_id"] for one in asked()["calibrations"]] == ["h100_sxm/vllm/1+2"]
    assert asked(calibration="shipped")["calibrations"] == []
    assert len(asked(calibration=own["id"])["calibrations"]) == 1
    found = local.http.post("/v1/replays", json={"trace_id": trace_id, **REPLAY, "calibration": "cal_none"})
    problem(found, 422, "calibration.unknown")
    assert local.http.delete(path).status_code == 204
    problem(local.http.get(path), 404, "calibration.not_found")


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": []},
        {"parameters": [dict(one, value=-1.0) for one in calibration_document()["parameters"]]},
        {"measurements": 0},
        {"date": "soon"},
        {"deployment": calibration_document()["deployment"] | {"model": "no/such-model"}},
    ],
)
def test_an_impossible_calibration_is_refused(local, changes):
    problem(local.http.post("/v1/calibrations", json={"calibration": calibration_document(**changes)}), 422)


@pytest.fixture
def steps(tmp_path):
    return table(tmp_path / "steps.csv", TRUTH).read_bytes()


def send(site, *files, deployment=SERVER, **more):
    """The answer to a form with these files, each a name and a content."""
    parts = [("measurements", (name, content, "application/octet-stream")) for name, content in files]
    data = {"deployment": deployment if isinstance(deployment, str) else json.dumps(deployment), **more}
    return site.http.post("/v1/calibrations", data=data, files=parts or {"other": b"x"})


def test_a_deployment_that_is_no_json_is_named(local, steps):
    found = problem(send(local, ("steps.csv", steps), deployment="model=x"), 422, "json.invalid")
    assert found["detail"].startswith("the deployment is not JSON")
    assert [one["field"] for one in found["errors"]] == ["deployment"]


def test_measurements_are_fitted_by_a_job_and_count_from_then_on(local, steps):
    answer = send(local, ("steps.csv", steps), name="my server")
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["kind"], job["name"], job["calibration_id"]) == ("calibrate", "my server", None)
    assert local.made.work(job["id"]) == "succeeded"
    ended = local.http.get(answer.headers["location"]).json()
    found = local.http.get(f"/v1/calibrations/{ended['calibration_id']}").json()
    assert (found["version"], found["counts"], found["job_id"]) == (1, True, job["id"])
    fitted = found["calibration"]
    by_name = {one["name"]: one for one in fitted["parameters"]}
    assert by_name["kernels_factor"]["value"] == pytest.approx(TRUTH[0], rel=0.02)
    assert all(one["identified"] or one["reason"] for one in fitted["parameters"])
    assert {one["phase"] for one in fitted["errors"]} == {None, "prefill", "decode", "mixed", "first token"}
    assert fitted["residuals"]
    assert fitted["sources"] == ["steps.csv"]
    assert local.http.get("/v1/jobs?kind=calibrate").json()["items"][0]["id"] == job["id"]


def test_equal_measurements_are_one_job_until_its_calibration_is_deleted(local, steps):
    first = send(local, ("a.csv", steps)).json()
    local.made.work(first["id"])
    again = send(local, ("a.csv", steps))
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    path = f"/v1/calibrations/{again.json()['calibration_id']}"
    assert local.http.delete(path).status_code == 204
    assert local.http.get(f"/v1/jobs/{first['id']}").json()["calibration_id"] is None
    assert send(local, ("a.csv", steps)).json()["id"] != first["id"]


def test_versions_count_and_the_newest_is_used(local, steps):
    ids = []
    for name in ("a.csv", "b.csv"):
        job = send(local, (name, steps)).json()["id"]
        local.made.work(job)
        ids.append(local.http.get(f"/v1/jobs/{job}").json()["calibration_id"])
    listed = {one["id"]: one for one in local.http.get("/v1/calibrations").json()["items"]}
    assert [(listed[one]["version"], listed[one]["counts"]) for one in ids] == [(1, False), (2, True)]
    local.http.delete(f"/v1/calibrations/{ids[1]}")
    assert local.http.get(f"/v1/calibrations/{ids[0]}").json()["counts"]


def test_files_stay_while_their_job_is_live_and_are_gone_afterwards(local, steps):
    job = send(local, ("a.csv", steps)).json()["id"]
    with local.made.services.database.read() as session:
        (file,) = session.query(JobFile).all()
    assert (file.job_id, file.bytes) == (job, len(steps))
    assert local.made.services.blobs.exists(file.sha256)
    local.made.work(job)
    assert not local.made.services.blobs.exists(file.sha256)
    with local.made.services.database.read() as session:
        assert session.get(Blob, file.sha256) is None
    assert not list(local.made.services.settings.tmp_path.iterdir())


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("step,0,0,16,16000,-0.02", "calibration.time"),
        ("step,0,0,16,16000,nan", "calibration.time"),
        ("step,0,0,16,16000,16.0", "calibration.implausible"),
        ("step,9000,0,0,0,0.2", "calibration.beyond"),
    ],
)
def test_poison_fails_the_job_with_the_reason(local, row, code):
    job = send(local, ("a.csv", f"{HEAD}\n{row}\n".encode())).json()["id"]
    assert local.made.work(job) == "failed"
    error = local.http.get(f"/v1/jobs/{job}").json()["error"]
    assert error["code"] == code
    assert error["errors"][0]["field"] == "measurements"
    assert error["errors"][0]["cure"]
    assert local.http.get("/v1/calibrations").json()["items"] == []


def result(**changes):
    """A result of vLLM bench serve: 30 requests of 20 tokens."""
    return {
        "backend": "vllm",
        "model_id": "Qwen/Qwen3-14B",
        "num_prompts": 30,
        "completed": 30,
        "duration": 40.0,
        "start_times": [1.7e9 + i for i in range(30)],
        "input_lens": [500] * 30,
        "output_lens": [20] * 30,
        "ttfts": [0.05] * 30,
        "itls": [[0.012] * 19] * 30,
        "errors": [""] * 30,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ttfts": [-0.05] * 30}, "calibration.latency"),
        ({"ttfts": [float("nan")] * 30}, "calibration.latency"),
        ({"ttfts": [50.0] * 30, "itls": [[12.0] * 19] * 30}, "calibration.unit"),
        ({"itls": [[0.024] * 9] * 30}, "calibration.tokens_per_chunk"),
        ({"itls": None, "ttfts": None}, "calibration.no_detail"),
        ({"errors": ["timeout"] * 3 + [""] * 27}, "calibration.failed"),
    ],
)
def test_a_poisoned_result_fails_the_job_with_the_reason(local, changes, code):
    job = send(local, ("run.json", json.dumps(result(**changes)).encode())).json()["id"]
    assert local.made.work(job) == "failed"
    error = local.http.get(f"/v1/jobs/{job}").json()["error"]
    assert (error["code"], error["errors"][0]["field"]) == (code, "measurements")
    assert error["errors"][0]["cure"]
    assert "run.json" in error["detail"]


def test_a_file_of_no_known_kind_is_refused(local):
    job = send(local, ("sales.csv", b"alpha,beta\n1,2\n")).json()["id"]
    assert local.made.work(job) == "failed"
    error = local.http.get(f"/v1/jobs/{job}").json()["error"]
    assert error["code"] == "calibration.file_kind"
    assert "table with prefill_tokens" in error["errors"][0]["cure"]


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"deployment": ""}, "calibration.form", "deployment"),
        ({"deployment": "{"}, "json.invalid", "deployment"),
        ({"deployment": {"gpu": "H100-SXM"}}, "validation", "deployment.model"),
        ({"deployment": SERVER | {"replicas": 2}}, "validation", "deployment.replicas"),
        ({"deployment": SERVER | {"gpu": "H100-SXN"}}, "catalogue.unknown_gpu", "gpu"),
        ({"deployment": SERVER | {"tp": 3}}, None, None),
        ({"deployment": SERVER | {"engine": {"preset": "vllm-0.11", "overrides": {"max_seqs": 4}}}}, None, None),
        ({"speed": "fast"}, "calibration.form", "speed"),
        ({"name": "x" * 201}, "calibration.form", "name"),
    ],
)
def test_a_form_that_cannot_be_is_refused_at_once(local, steps, changes, code, field):
    found = problem(send(local, ("a.csv", steps), **changes), 422, code)
    assert found["errors"]
    assert field is None or found["errors"][0]["field"] == field
    assert local.http.get("/v1/jobs").json()["items"] == []
    assert not list(local.made.services.settings.tmp_path.iterdir())


def test_files_that_cannot_be_are_refused(local, steps):
    problem(send(local), 422, "calibration.form")
    problem(send(local, *[(f"{i}.csv", steps + b"\n" * i) for i in range(21)]), 422, "calibration.form")
    problem(send(local, ("a.csv", steps), ("b.csv", steps)), 422, "calibration.twice")
    problem(send(local, ("a.csv", b"")), 422, "upload.empty")
    plain = {"content": steps, "headers": {"content-type": "text/csv"}}
    problem(local.http.post("/v1/calibrations", **plain), 415)
    odd = {"content": b"--x\r\nno head", "headers": {"content-type": "multipart/form-data; boundary=x"}}
    problem(local.http.post("/v1/calibrations", **odd), 400, "upload.form")
    problem(local.http.post("/v1/calibrations?gpu=H100", files={"measurements": steps}), 422, "query.unknown")


def test_a_form_beyond_the_limit_is_refused(serve, steps):
    problem(send(serve(upload_max_bytes=1000), ("a.csv", steps)), 413, "upload.too_large")
    problem(send(serve(max_stored_bytes=100), ("a.csv", steps)), 429, "limit.stored_bytes")


def test_names_are_made_safe(local, steps):
    job = send(local, ("../../etc/..pass\u00e9 wd", steps)).json()["id"]
    with local.made.services.database.read() as session:
        (file,) = session.get(Job, job).spec["calibrate"]["files"]
    assert file["name"] == "pass\u00e9 wd"
    assert local.made.work(job) == "succeeded"


def test_a_form_needs_a_key_that_may_start_jobs(keyed, steps):
    http = keyed.client(keyed.made.add_key("a", "reports:read"))
    files = {"measurements": ("a.csv", steps)}
    problem(http.post("/v1/calibrations", data={"deployment": json.dumps(SERVER)}, files=files), 403, "forbidden.scope")
    problem(keyed.client(None).post("/v1/calibrations", files=files), 401)
    writer = keyed.client(keyed.made.add_key("a", "jobs:write"))
    assert writer.post("/v1/calibrations", data={"deployment": json.dumps(SERVER)}, files=files).status_code == 202
