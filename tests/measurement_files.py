"""Measurements for tests, of servers whose law is known: tables of steps and results of a load generator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from replay.calibration.applied import with_parameters
from replay.calibration.step_fit import design_of
from replay.calibration.steps import Steps
from replay.calibration.user import PARAMETERS
from replay.deployment import Deployment, resolve_deployment
from replay.errors import TraceError
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.workload import Workload

CATALOGUE = shipped_catalogue()
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
BENCHED = deployment_of(engine={})


def bench(
    rate: float, *, factor: float = 1.12, request_s: float = 7.5e-3, n: int = 120, seed: int = 0
) -> dict[str, Any]:
    """The result of a load generator against a server whose law is known, at ``rate`` requests a second."""
    record = BENCHED.step_time
    truth = np.array([factor, 1.0, record.decode_request_ps / 1e12, record.host_ps / 1e12, request_s])
    draw = np.random.default_rng(seed)
    arrival = np.sort(draw.uniform(0, n / rate, n))
    prompt, output = draw.integers(200, 1500, n), draw.integers(20, 120, n)
    workload = Workload((arrival * 1e12).astype(np.int64), prompt, output, span_s=n / rate)
    requests = simulate(workload, replaced(BENCHED, truth), judge_load=False).requests
    ttft = (requests.first_token_ps - requests.arrival_ps) / 1e12
    itl = (requests.last_token_ps - requests.first_token_ps) / 1e12 / np.maximum(output - 1, 1)
    noise = 1 + 0.01 * draw.standard_normal(n)
    return {
        "backend": "vllm",
        "model_id": "Qwen/Qwen3-14B",
        "num_prompts": n,
        "completed": n,
        "duration": float(n / rate + 10),
        "start_times": (1.7e9 + arrival).tolist(),
        "input_lens": prompt.tolist(),
        "output_lens": output.tolist(),
        "ttfts": (ttft * noise).tolist(),
        "itls": [[float(gap)] * int(count - 1) for gap, count in zip(itl * noise, output, strict=True)],
        "errors": [""] * n,
    }
