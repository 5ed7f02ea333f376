"""Experiments on the test server, on a virtual clock, and what is fitted to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
from endpoint_server import Api, Chunk, Faults, InProcess, Law, run_virtual

from api.endpoint.client import opened
from api.endpoint.experiment import Budget, Experiment, Findings
from api.endpoint.prompts import Prompts
from replay.calibration.applied import apply_calibration, with_parameters
from replay.calibration.fit import calibrate
from replay.calibration.user import PARAMETERS, UserCalibration
from replay.deployment import Deployment, resolve_deployment
from replay.experiment.answers import Row
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.loglinear import interpolate
from replay.specs import DeploymentSpec
from replay.steptime.record import StepTime

CATALOGUE = shipped_catalogue()
TODAY = date(2026, 11, 30)
SHORT = Budget(45_000, 60.0)
"""Enough for the first parts of the plan."""
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
    """The law of a step-time record, written out once more. ``hidden_host``: asynchronous scheduling."""

    def law(chunks: list[Chunk], decodes: int, context: int) -> float:
        attention = 0
        for tokens, before in chunks:
            attention += record.prefill_linear_ps * tokens * (2 * before + tokens + 1)
            attention += (
                int(interpolate(record.prefill_table_ps, tokens, before)) if record.prefill_table_ps.size else 0
            )
        ps = int(record.rest_ps[sum(tokens for tokens, _ in chunks) + decodes])
        ps += attention + (record.prefill_step_ps if attention else 0)
        ps += record.decode_request_ps * decodes + record.decode_linear_ps * context
        if decodes and record.decode_table_ps.size:
            ps += int(interpolate(record.decode_table_ps, decodes, context // decodes))
        host_ps = record.host_ps + record.host_per_request_ps * (decodes + len(chunks))
        return (max(ps, host_ps) if hidden_host else ps + host_ps) / 1e12

    return law


def true_law(deployment: Deployment, truth: np.ndarray) -> Law:
    """The law of a server of this deployment with the parameters ``truth``."""
    return law_of(planted(deployment, truth), hidden_host=deployment.engine.async_scheduling)


def affine_law(chunks: list[Chunk], decodes: int, context: int) -> float:
    """A server whose steps grow evenly, s: no knee, and no prefill attention."""
    return 7e-3 + 30e-6 * sum(tokens for tokens, _ in chunks) + 60e-6 * decodes + 45e-9 * context


def roofline_law(chunks: list[Chunk], decodes: int, context: int) -> float:
    """A server whose weights are read in 7.5 ms, which is what 180 tokens take to compute, s."""
    tokens = sum(tokens for tokens, _ in chunks) + decodes
    return 2e-3 + 7.5e-3 * max(1.0, tokens / 180) + 40e-6 * decodes + 45e-9 * context


LAWS: dict[str, Law] = {"affine": affine_law, "roofline": roofline_law}
"""Laws that are no multiple of any shipped step times."""


def true_s(
    row: Row, deployment: Deployment = DEPLOYMENT, truth: np.ndarray = TRUTH, own_law: Law | None = None
) -> float:
    """What the law says of a measured row; a long prompt takes several steps."""
    law = own_law or true_law(deployment, truth)
    left, before, total_s = row.prefill_tokens, row.cached_tokens, 0.0
    if row.kind == "step":
        return law([(left, before)] if left else [], row.decode_requests, row.decode_context_tokens)
    while left:
        chunk = min(left, deployment.engine.max_num_batched_tokens)
        total_s += law([(chunk, before)], 0, 0)
        left, before = left - chunk, before + chunk
    return total_s + float(truth[4])


def measured(
    faults: Faults | None = None,
    *,
    deployment: Deployment = DEPLOYMENT,
    truth: np.ndarray = TRUTH,
    budget: Budget = SHORT,
    found: Findings | None = None,
    key: str | None = None,
    served_model: str | None = None,
    law: Law | None = None,
    api: Api | None = None,
    progress: Callable[[str, float], None] = lambda _stage, _share: None,
    **engine: int,
) -> Findings:
    """What the experiment finds on a server with these faults."""
    own_law = law or true_law(deployment, truth)
    found = found or Findings()

    async def whole() -> None:
        server = api or Api(own_law, faults, a0_s=float(truth[4]), **engine)
        prompts = Prompts(deployment.model.vocab_size, seed=1)
        async with opened("http://test", prompts, key=key, transport=InProcess(server)) as endpoint:
            experiment = Experiment(endpoint, deployment, budget, found, progress=progress)
            await experiment.run(served_model)

    run_virtual(whole())
    return found


def fitted(found: Findings, folder: Path, deployment: Deployment = DEPLOYMENT) -> UserCalibration:
    path = folder / "measured.json"
    path.write_text(json.dumps({"steps": [row.columns() for row in found.rows]}))
    return calibrate([path], deployment, today=TODAY)


def worst_error(
    found: UserCalibration,
    deployment: Deployment,
    truth: np.ndarray,
    decodes: tuple[int, ...] = (1, 3, 24, 100),
    *,
    law: Law | None = None,
) -> float:
    """Of step times by the calibration, over steps that were not measured. ``law``: the true one, where it is no
    multiple of the shipped step times."""
    hidden = deployment.engine.async_scheduling
    own = law_of(apply_calibration(deployment.step_time, found, async_scheduling=hidden), hidden_host=hidden)
    true = law or true_law(deployment, truth)
    grid: list[tuple[list[Chunk], int, int]] = [([], n, n * c) for n in decodes for c in (300, 1500, 5000)]
    grid += [([(tokens, 0)], n, n * 700) for tokens in (100, 800, 1900) for n in (0, 12)]
    return max(abs(own(*step) / true(*step) - 1) for step in grid)
