"""A server whose step law is known is measured on a virtual clock: the law comes back, and every fault is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.endpoint.client import opened
from api.endpoint.experiment import Budget, Experiment, Findings
from api.endpoint.prompts import Prompts
from endpoint_server import Api, Chunk, Faults, InProcess, Law, run_virtual
from replay.calibration.applied import apply_calibration, with_parameters
from replay.calibration.fit import calibrate
from replay.calibration.user import PARAMETERS, UserCalibration
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.loglinear import interpolate
from replay.specs import DeploymentSpec
from replay.steptime.record import StepTime

CATALOGUE = shipped_catalogue()
TODAY = date(2026, 11, 30)
TRUTH = np.array([1.14, 0.9, 60e-6, 4e-3, 11e-3])


def deployment_of(preset: str = "vllm-0.11", **changes: object) -> Deployment:
    spec = DeploymentSpec.model_validate(
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM", "engine": {"preset": preset}, **changes}
    )
    return resolve_deployment(spec, CATALOGUE.model(spec.model), CATALOGUE.gpu(spec.gpu))


DEPLOYMENT = deployment_of()


def planted(deployment: Deployment, truth: np.ndarray) -> StepTime:
    return with_parameters(deployment.step_time, **dict(zip(PARAMETERS, truth.tolist(), strict=True)))


def law_of(record: StepTime, *, hidden_host: bool = False) -> Law:
    """The law of a step-time record, written out once more."""

    def law(chunks: list[Chunk], decodes: int, context: int) -> float:
        attention = 0
        for tokens, before in chunks:
            attention += record.prefill_linear_ps * tokens * (2 * before + tokens + 1)
            attention += int(interpolate(record.prefill_table_ps, tokens, before)) if record.prefill_table_ps.size else 0
        ps = int(record.rest_ps[sum(tokens for tokens, _ in chunks) + decodes])
        ps += attention + (record.prefill_step_ps if attention else 0)
        ps += record.decode_request_ps * decodes + record.decode_linear_ps * context
        if decodes and record.decode_table_ps.size:
            ps += int(interpolate(record.decode_table_ps, decodes, context // decodes))
        host_ps = record.host_ps + record.host_per_request_ps * (decodes + len(chunks))
        return (max(ps, host_ps) if hidden_host else ps + host_ps) / 1e12

    return law


def measured(
    faults: Faults | None = None,
    *,
    deployment: Deployment = DEPLOYMENT,
    truth: np.ndarray = TRUTH,
    budget: Budget = Budget(200_000, 300.0),  # noqa: B008 # frozen
    found: Findings | None = None,
    key: str | None = None,
    served_model: str | None = None,
    law: Law | None = None,
    api: Api | None = None,
    progress: Callable[[str, float], None] = lambda _stage, _share: None,
    **engine: int,
) -> Findings:
    """What the experiment finds on a server with these faults."""
    record = planted(deployment, truth)
    own_law = law or law_of(record, hidden_host=deployment.engine.async_scheduling)
    found = found or Findings()

    async def whole() -> None:
        server = api or Api(own_law, faults, a0_s=float(truth[4]), **engine)
        prompts = Prompts(deployment.model.vocab_size, seed=1)
        async with opened("http://test", prompts, key=key, transport=InProcess(server)) as endpoint:
            experiment = Experiment(
                endpoint, deployment, budget, found, progress=progress, cpu_s=lambda: 0.0
            )
            await experiment.run(served_model)

    run_virtual(whole())
    return found


def fitted(found: Findings, folder: Path, deployment: Deployment = DEPLOYMENT) -> UserCalibration:
    path = folder / "measured.json"
    path.write_text(json.dumps({"steps": [row.columns() for row in found.rows]}))
    return calibrate([path], deployment, today=TODAY)


def worst_error(found: UserCalibration, deployment: Deployment, truth: np.ndarray) -> float:
    """Of step times by the calibration, over steps that were not measured."""
    own = law_of(apply_calibration(deployment.step_time, found, async_scheduling=deployment.engine.async_scheduling))
    true = law_of(planted(deployment, truth))
    grid: list[tuple[list[Chunk], int, int]] = [([], n, n * c) for n in (1, 3, 24, 100) for c in (300, 1500, 5000)]
    grid += [([(tokens, 0)], n, n * 700) for tokens in (100, 800, 3000, 8000) for n in (0, 12)]
    return max(abs(own(*step) / true(*step) - 1) for step in grid)


def test_the_true_law_comes_back_within_3_percent(tmp_path: Path) -> None:
    found = measured()
    assert found.lost == []
    calibration = fitted(found, tmp_path)
    print(calibration.parameters)
    assert all(one.identified for one in calibration.parameters)
    for name, value in zip(PARAMETERS, TRUTH.tolist(), strict=True):
        assert calibration.value(name) == pytest.approx(value, rel=0.03)
    assert worst_error(calibration, DEPLOYMENT, TRUTH) < 0.03
    assert all(error.median < 0.01 < error.shipped_median for error in calibration.errors)
