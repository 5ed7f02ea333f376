"""Calibration from tables of steps: planted parameters come back, what is not told stays, poison is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from replay.calibration.applied import apply_calibration, with_parameters
from replay.calibration.fit import calibrate
from replay.calibration.step_fit import PRIOR_SD, design_of, fit_steps
from replay.calibration.steps import Steps, read_steps
from replay.calibration.user import PARAMETERS, UserCalibration, parse_calibration
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError, TraceError
from replay.hardware.catalogue import shipped_catalogue
from replay.specs import DeploymentSpec

CATALOGUE = shipped_catalogue()
TODAY = date(2026, 11, 29)
HEAD = "kind,prefill_tokens,cached,decode_requests,decode_context_tokens,time_s"


def deployment_of(**changes: object) -> Deployment:
    fields = {"model": "Qwen/Qwen3-14B", "gpu": "H100-SXM", "engine": {"preset": "vllm-0.11"}, **changes}
    spec = DeploymentSpec.model_validate(fields)
    return resolve_deployment(spec, CATALOGUE.model(spec.model), CATALOGUE.gpu(spec.gpu))


DEPLOYMENT = deployment_of()


def shapes(*, decodes: bool = True, first_tokens: bool = True) -> list[tuple[str, int, int, int, int]]:
    rows = [("step", tokens, cached, 0, 0) for tokens in (64, 512, 2048, 8000) for cached in (0, 4000)]
    if decodes:
        rows += [("step", 0, 0, n, n * context) for n in (1, 16, 64, 256) for context in (100, 2000, 8000)]
        rows += [("step", 1024, 0, n, n * 1000) for n in (8, 32, 128)]
    if first_tokens:
        rows += [("ttft", tokens, 0, 0, 0) for tokens in (32, 500, 1500, 6000, 12000)]
    return rows


def table(path: Path, truth: np.ndarray, *, noise: float = 0.01, repeats: int = 4, **which: bool) -> Path:
    """Steps of a server whose parameters are ``truth``."""
    rows = shapes(**which) * repeats
    columns = list(zip(*rows, strict=True))
    steps = Steps(
        np.array([kind == "ttft" for kind in columns[0]]),
        *(np.array(column, dtype=np.int64) for column in columns[1:]),
        time_s=np.ones(len(rows)),
    )
    exact = replaced(DEPLOYMENT, truth)
    jitter = 1 + noise * np.random.default_rng(3).standard_normal(len(rows))
    design = design_without_check(steps, exact)
    lines = [f"{','.join(map(str, row))},{time}" for row, time in zip(rows, design * jitter, strict=True)]
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


def replaced(deployment: Deployment, truth: np.ndarray) -> Deployment:
    changed = with_parameters(deployment.step_time, **dict(zip(PARAMETERS, truth.tolist(), strict=True)))
    return replace(deployment, step_time=changed)


def design_without_check(steps: Steps, deployment: Deployment) -> np.ndarray:
    record = deployment.step_time
    own = replace(steps, time_s=np.full(steps.n, 1.0))
    for _ in range(2):  # the first pass has no times yet, which the check would refuse
        try:
            design = design_of(own, record, deployment.engine)
        except TraceError:
            own = replace(own, time_s=np.full(steps.n, 0.03))
            continue
        return design.predict(design.prior)
    raise AssertionError("no plausible time")


TRUTH = np.array([1.13, 1.0, 24e-6, 3.5e-3, 4e-3])


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
