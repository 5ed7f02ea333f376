"""Calibration from tables of steps: planted parameters come back, what is not told stays, poison is refused."""

from __future__ import annotations

import gzip
import json
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from measurement_files import DEPLOYMENT, HEAD, TRUTH, deployment_of, shapes, table

from replay.calibration.applied import apply_calibration
from replay.calibration.fit import calibrate
from replay.calibration.step_fit import PRIOR_SD, design_of, fit_steps
from replay.calibration.steps import read_steps
from replay.calibration.user import PARAMETERS, UserCalibration, parse_calibration
from replay.deployment import resolve_deployment
from replay.errors import SpecError, TraceError
from replay.specs import DeploymentSpec

TODAY = date(2026, 11, 29)


def test_planted_parameters_come_back_under_noise(tmp_path: Path) -> None:
    truth = TRUTH.copy()
    truth[2] = DEPLOYMENT.step_time.decode_request_ps / 1e12
    found = calibrate([table(tmp_path / "s.csv", truth)], DEPLOYMENT, today=TODAY)
    assert found.value("kernels_factor") == pytest.approx(1.13, rel=0.02)
    assert found.value("host_s") == pytest.approx(3.5e-3, abs=0.3e-3)
    assert found.value("request_s") == pytest.approx(4e-3, abs=0.5e-3)
    assert found.value("decode_attention_factor") == pytest.approx(1.0, abs=0.05)
    for error in found.errors:
        assert error.median < 0.02 < error.shipped_median
    assert found.measurements == len(shapes()) * 4
    assert found.base_id == DEPLOYMENT.step_time.calibration_id


def test_what_the_data_cannot_tell_stays_and_is_named(tmp_path: Path) -> None:
    truth = np.array([1.2, 1.0, DEPLOYMENT.step_time.decode_request_ps / 1e12, 1.5e-3, 7.5e-3])
    path = table(tmp_path / "s.csv", truth, decodes=False, first_tokens=False)
    found = calibrate([path], DEPLOYMENT, today=TODAY)
    by_name = {one.name: one for one in found.parameters}
    assert by_name["kernels_factor"].identified
    for name in ("decode_attention_factor", "decode_row_s", "request_s"):
        one = by_name[name]
        assert (one.identified, one.sd, one.value) == (False, None, one.shipped)
        assert "measured" in one.reason
    design = design_of(read_steps(path), DEPLOYMENT.step_time, DEPLOYMENT.engine)  # type: ignore[arg-type]
    assert (fit_steps(design, read_steps(path).time_s).sd[:1] < PRIOR_SD[:1] / 2).all()  # type: ignore[union-attr]


def test_a_single_step_changes_little_and_has_no_error(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text(HEAD + "\nstep,0,0,16,16000,0.016\n")
    found = calibrate([path], DEPLOYMENT, today=TODAY)
    assert found.errors == ()
    assert "too few" in found.stated_error


def test_no_change_where_the_shipped_times_are_better(tmp_path: Path) -> None:
    truth = np.array([one.shipped for one in shipped().parameters])
    found = calibrate([table(tmp_path / "s.csv", truth, noise=0.3, repeats=1)], DEPLOYMENT, today=TODAY)
    assert all(error.median <= error.shipped_median + 0.02 for error in found.errors)
    assert found.value("kernels_factor") == pytest.approx(1.0, abs=0.15)


def test_steps_that_tell_nothing_and_are_far_off_are_refused(tmp_path: Path) -> None:
    """Times without any law: a calibration of them would count as measured with every parameter as shipped."""
    path = tmp_path / "constant.csv"
    path.write_text("\n".join([HEAD, *(f"step,0,0,{n},{1000 * n},0.08" for n in range(1, 65))]))
    with pytest.raises(TraceError) as refused:
        calibrate([path], DEPLOYMENT, today=TODAY)
    assert refused.value.code == "calibration.unexplained"
    assert "name what was measured" in refused.value.errors[0].cure


def shipped() -> UserCalibration:
    record = DEPLOYMENT.step_time
    values = [1.0, 1.0, record.decode_request_ps / 1e12, record.host_ps / 1e12, record.request_overhead_ps / 1e12]
    return UserCalibration.model_validate(
        {
            "deployment": {
                "model": "Qwen/Qwen3-14B", "gpu": "H100-SXM", "tp": 1, "family": "vllm", "weight_dtype": "bf16",
                "kv_dtype": "bf16",
            },
            "base_id": record.calibration_id,
            "async_scheduling": False,
            "parameters": [
                {"name": name, "value": value, "shipped": value, "sd": None, "identified": False}
                for name, value in zip(PARAMETERS, values, strict=True)
            ],
            "errors": [],
            "sources": ["x"],
            "measurements": 1,
            "date": "2026-11-29",
        }
    )  # fmt: skip


def test_a_few_absurd_steps_count_nothing(tmp_path: Path) -> None:
    truth = TRUTH.copy()
    truth[2] = DEPLOYMENT.step_time.decode_request_ps / 1e12
    path = table(tmp_path / "s.csv", truth)
    path.write_text(path.read_text() + "step,2048,0,32,32000,0.0002\n" * 4)
    found = calibrate([path], DEPLOYMENT, today=TODAY)
    assert found.value("kernels_factor") == pytest.approx(1.13, rel=0.02)
    assert any("4 of" in note for note in found.notes)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("step,0,0,16,16000,-0.02", "calibration.time"),
        ("step,0,0,16,16000,nan", "calibration.time"),
        ("step,0,0,16,16000,", "calibration.time"),
        ("step,0,0,16,16000,inf", "calibration.time"),
        ("step,-1,0,16,16000,0.02", "calibration.count"),
        ("step,1.5,0,16,16000,0.02", "calibration.count"),
        ("step,0,0,16,10,0.02", "calibration.row"),
        ("step,0,0,0,0,0.02", "calibration.row"),
        ("ttft,64,0,4,400,0.02", "calibration.row"),
        ("guess,0,0,16,16000,0.02", "calibration.kind"),
        ("step,9000,0,0,0,0.2", "calibration.beyond"),
        ("step,0,0,16,16000,16.0", "calibration.implausible"),
        ("step,0,0,16,16000,0.00001", "calibration.implausible"),
    ],
)
def test_poison_is_refused_with_the_reason(tmp_path: Path, row: str, code: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(TraceError) as refused:
        calibrate([path], DEPLOYMENT, today=TODAY)
    assert refused.value.code == code
    assert refused.value.errors[0].cure
    if code == "calibration.implausible" and "16.0" in row:
        assert "milliseconds" in refused.value.detail


def test_the_calibration_is_used_for_its_deployment_alone(tmp_path: Path) -> None:
    truth = TRUTH.copy()
    truth[2] = DEPLOYMENT.step_time.decode_request_ps / 1e12
    found = calibrate([table(tmp_path / "s.csv", truth)], DEPLOYMENT, today=TODAY)
    model, gpu = DEPLOYMENT.model, DEPLOYMENT.gpu
    own = resolve_deployment(DEPLOYMENT.spec, model, gpu, (found,)).step_time
    assert (own.provenance, own.calibration_id) == ("measured", found.id)
    ratio = own.rest_ps[4096] / DEPLOYMENT.step_time.rest_ps[4096]
    assert ratio == pytest.approx(found.value("kernels_factor"), rel=1e-9)
    assert own.host_ps == round(found.value("host_s") * 1e12)
    assert own.stated_error.startswith("step time as measured on this deployment: median ")
    for change in ({"tp": 2}, {"kv_dtype": "fp8"}, {"weight_dtype": "fp8"}, {"engine": {"preset": "sglang"}}):
        other = DeploymentSpec.model_validate({**DEPLOYMENT.spec.model_dump(), **change})
        assert resolve_deployment(other, model, gpu, (found,)).step_time.provenance != "measured"
    newer = DeploymentSpec.model_validate({**DEPLOYMENT.spec.model_dump(), "engine": {"preset": "vllm-0.33"}})
    moved = resolve_deployment(newer, model, gpu, (found,))
    assert moved.step_time.provenance == "measured"
    assert moved.step_time.host_ps == resolve_deployment(newer, model, gpu).step_time.host_ps


def test_a_changed_base_is_said_and_files_go_round(tmp_path: Path) -> None:
    calibration = shipped()
    assert parse_calibration(json.loads(calibration.model_dump_json())) == calibration
    record = apply_calibration(DEPLOYMENT.step_time, calibration, async_scheduling=False)
    assert not any("calibrate again" in note for note in record.notes)
    old = calibration.model_copy(update={"base_id": "older/1"})
    assert old.id != calibration.id
    assert any("calibrate again" in n for n in apply_calibration(record, old, async_scheduling=False).notes)
    with pytest.raises(SpecError) as refused:
        parse_calibration({"id": "x"})
    assert refused.value.code == "calibration.file"
    with pytest.raises(SpecError) as nothing:
        calibrate([], DEPLOYMENT, today=TODAY)
    assert nothing.value.code == "calibration.mixed"


def test_a_table_is_read_the_same_from_every_form(tmp_path: Path) -> None:
    csv = table(tmp_path / "s.csv", TRUTH, repeats=1)
    frame = pl.read_csv(csv)
    rows = frame.to_dicts()
    forms = {
        "s.json": json.dumps({"steps": rows}).encode(),
        "array": json.dumps(rows).encode(),
        "s.jsonl": "\n".join(json.dumps(row) for row in rows).encode(),
        "s.csv.gz": gzip.compress(csv.read_bytes()),
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
    frame.write_parquet(tmp_path / "parquet")
    wanted = calibrate([csv], DEPLOYMENT, today=TODAY).parameters
    for name in (*forms, "parquet"):
        assert calibrate([tmp_path / name], DEPLOYMENT, today=TODAY).parameters == wanted, name


def test_a_table_that_unfolds_beyond_all_bounds_or_is_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(gzip.compress(HEAD.encode() + b"\n" + b" " * 300 * 2**20))
    whole = table(tmp_path / "s.csv", TRUTH)
    pl.read_csv(whole).write_parquet(tmp_path / "p")
    (tmp_path / "cut").write_bytes((tmp_path / "p").read_bytes()[:-20])
    for name, code in (("bomb", "trace."), ("cut", "calibration.table")):
        with pytest.raises(TraceError) as refused:
            calibrate([tmp_path / name], DEPLOYMENT, today=TODAY)
        assert refused.value.code.startswith(code)
        assert refused.value.errors[0].cure


def test_errors_are_stated_by_phase(tmp_path: Path) -> None:
    found = calibrate([table(tmp_path / "s.csv", TRUTH)], DEPLOYMENT, today=TODAY)
    by_phase = {one.phase: one for one in found.errors}
    assert {"prefill", "decode", "mixed", "first token", None} == set(by_phase)
    assert by_phase[None].n == sum(by_phase[one].n for one in ("prefill", "decode", "mixed"))  # type: ignore[index]
    assert "prefill p95" in found.stated_error
    assert {one.phase for one in found.residuals} == {"prefill", "decode", "mixed", "first token"}


def test_data_parallel_ranks_keep_the_shipped_step_times_and_it_is_said(tmp_path: Path) -> None:
    ranks = {"preset": "vllm-0.11", "overrides": {"data_parallel_size": 2}}
    parallel = deployment_of(model="Qwen/Qwen3-30B-A3B", engine=ranks)
    key = shipped().deployment.model_copy(update={"model": parallel.model.key})
    own = shipped().model_copy(update={"deployment": key})
    found = resolve_deployment(parallel.spec, parallel.model, parallel.gpu, (own,)).step_time
    assert found.provenance != "measured"
    assert any(own.id in note and "data-parallel" in note for note in found.notes)
    with pytest.raises(SpecError) as refused:
        calibrate([table(tmp_path / "s.csv", TRUTH)], parallel, today=TODAY)
    assert refused.value.code == "calibration.data_parallel"
