"""The calibration pages: the form takes files, the log fills it in, and one calibration shows how far it is off."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import httpx
import plotly.graph_objects as go
import pytest
from apptools import TestApp, calibration_document, form_token
from measurement_files import TRUTH, table

from api.pages.calibration_view import agreement_chart, residual_chart
from api.reports.tables import to_csv
from replay.calibration.user import UserCalibration

LOG = (
    "vLLM API server version 0.11.0\nnon-default args: {'model': 'Qwen/Qwen3-14B', 'max_num_seqs': 128}\n"
    "GPU KV cache size: 400,000 tokens\n"
)
SERVER = {"model": "Qwen/Qwen3-14B", "gpu": "H100-SXM", "tp": "1", "engine": "vllm-0.11", "name": "<b>mine</b>"}


def kept(http: httpx.Client, **changes: object) -> str:
    """The address of a calibration's page."""
    made = http.post("/v1/calibrations", json={"calibration": calibration_document(**changes)}).json()
    return f"/calibrations/{made['id']}"


def test_files_are_fitted_and_shown(made: TestApp, http: httpx.Client, tmp_path: Path) -> None:
    page = http.get("/calibrations")
    assert "No calibrations yet" in page.text
    steps = table(tmp_path / "steps.csv", TRUTH)
    answer = http.post(
        "/calibrations",
        data=SERVER | {"csrf": form_token(page)},
        files={"measurements": ("steps.csv", steps.read_bytes())},
    )
    assert answer.status_code == 303
    job = answer.headers["location"]
    assert "Qwen/Qwen3-14B on H100-SXM; steps.csv" in http.get("/jobs").text
    assert made.work(job.removeprefix("/jobs/")) == "succeeded"
    where = http.get(f"{job}/state").json()["location"]
    shown = unescape(http.get(where).text)
    for words in ("use it, unless they ask for another", "step time, prefill", "steps.csv", "data-chart", "Version 1"):
        assert words in shown
    assert where in http.get("/calibrations").text
    answer = http.post(f"{where}/delete", data={"csrf": form_token(http.get(where))})
    assert (answer.status_code, answer.headers["location"]) == (303, "/calibrations")
    assert http.get(where).status_code == 404


def test_a_form_with_faults_comes_back_with_each_at_its_field(http: httpx.Client) -> None:
    csrf = form_token(http.get("/calibrations"))
    files = {"measurements": ("a.csv", b"x")}
    answer = http.post(
        "/calibrations", data={"csrf": csrf, "model": "Qwen/Qwen3-14C", "tp": "many", "knobs": "a"}, files=files
    )
    assert answer.status_code == 422
    for words in (
        "choose the GPU type",
        "is not a whole number",
        "not of the form name=value",
        "choose the files again",
    ):
        assert words in answer.text
    answer = http.post("/calibrations", data=SERVER | {"csrf": csrf, "model": "Qwen/Qwen3-14C"}, files=files)
    assert "Qwen/Qwen3-14B" in answer.text
    assert "&lt;b&gt;mine&lt;/b&gt;" in answer.text
    empty = {"measurements": ("", b"")}  # as a browser sends it where no file was chosen
    assert "choose at least one file" in http.post("/calibrations", data=SERVER | {"csrf": csrf}, files=empty).text
    forged = http.post("/calibrations", data=SERVER | {"csrf": "0"}, files=files)
    assert forged.status_code == 403
    assert http.get("/v1/jobs").json()["items"] == []


def test_a_log_fills_the_form_in(http: httpx.Client) -> None:
    csrf = form_token(http.get("/calibrations"))
    page = unescape(http.post("/calibrations/log", data={"csrf": csrf, "log": LOG}).text)
    for words in ("kv tokens", "400000", 'value="Qwen/Qwen3-14B"', "num_gpu_blocks_override=25000", "max_num_seqs=128"):
        assert words in page
    refused = http.post("/calibrations/log", data={"csrf": csrf, "log": "nothing of either <i>engine</i>"})
    assert refused.status_code == 422
    assert "e-log" in refused.text
    assert "<i>" not in refused.text


def test_what_is_not_known_is_said(http: httpx.Client) -> None:
    first = kept(http)
    assert "the error is not known" in http.get(first).text
    assert "stays as shipped" in http.get(first).text
    second = kept(http, measurements=200)
    assert f'href="{second}"' in http.get(first).text
    assert "A newer one counts" in http.get(first).text
    assert "no, a newer one counts" in http.get("/calibrations").text


def test_a_curve_of_its_own_is_shown_knot_by_knot(http: httpx.Client) -> None:
    told = {"shipped_s": 0.006, "factor": 1.3, "prior": 1.2, "sd": 0.01, "identified": True}
    untold = {
        "shipped_s": 0.16,
        "factor": 1.2,
        "prior": 1.2,
        "sd": None,
        "identified": False,
        "reason": "not told apart",
    }
    shape = {"knots": [{"tokens": 4, **told}, {"tokens": 7777, **untold}], "error": 0.01, "unbent_error": 0.2}
    page = unescape(http.get(kept(http, schema_version=2, shape=shape)).text)
    for words in ("Own shape of the linear part", "7,777", "GEMMs and all-reduces of a step", "not told apart"):
        assert words in page
    assert "Own shape" not in http.get(kept(http)).text


def test_charts_hold_the_residuals_and_plotly_takes_them() -> None:
    points = [("decode", 0.010, 0.011), ("decode", 0.020, 0.018), ("prefill", 0.5, 0.5)]
    residuals = [
        {"label": f"step {i}", "phase": phase, "measured_s": measured, "predicted_s": predicted}
        for i, (phase, measured, predicted) in enumerate(points)
    ]
    found = UserCalibration.model_validate(calibration_document(residuals=residuals))
    agreement, errors = agreement_chart(found), residual_chart(found)
    for chart in (agreement, errors):
        assert chart.figure is not None
        assert len(go.Figure(chart.figure).data) == len(chart.figure["data"])
        assert len(to_csv(chart.table).splitlines()) == 4
    assert agreement.figure is not None
    assert [line["name"] for line in agreement.figure["data"]] == ["both agree", "decode", "prefill"]
    assert agreement.figure["data"][1]["x"] == [10.0, 20.0]
    assert agreement.figure["layout"]["xaxis"]["ticktext"][:4] == ["10", "20", "50", "100"]
    assert errors.figure is not None
    assert errors.figure["data"][0]["y"] == pytest.approx([0.1, -0.1])
    assert "1 of 3 are predicted too slow" in errors.text


def test_a_plan_may_be_asked_to_rest_on_one_calibration(http: httpx.Client) -> None:
    older, newer = kept(http), kept(http, date="2026-11-30")
    page = http.get("/plans/new").text
    words = "Only meta-llama/Llama-3.1-8B on 1 x H100-SXM, version"
    one, two = (f'value="{where.removeprefix("/calibrations/")}">{words}' for where in (newer, older))
    assert page.index(f"{one} 2") < page.index(f"{two} 1")
    assert '<option value="auto" selected>' in page


def test_a_calibration_shows_the_reports_that_rest_on_it(made: TestApp, http: httpx.Client) -> None:
    where = kept(http)
    assert "No report rests on it yet" in http.get(where).text
    deployment = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100-SXM"}
    trace = made.add_ready_trace(name="mine")
    for calibration in ("auto", "shipped"):
        body = {"trace_id": trace, "deployment": deployment, "calibration": calibration}
        assert made.work(http.post("/v1/replays", json=body).json()["id"]) == "succeeded"
    newer, older = (one["id"] for one in http.get("/v1/reports").json()["items"])
    page = http.get(where).text
    assert f'href="/reports/{older}"' in page
    assert newer not in page, "it rests on shipped step times"
    calibration_id = where.removeprefix("/calibrations/")
    listed = http.get("/v1/reports", params={"calibration_id": calibration_id}).json()["items"]
    assert [one["id"] for one in listed] == [older]
    assert http.get("/v1/reports", params={"calibration_id": "cal_" + "0" * 32}).status_code == 404
    assert http.delete(f"/v1/reports/{older}").status_code == 204
    assert "No report rests on it yet" in http.get(where).text
