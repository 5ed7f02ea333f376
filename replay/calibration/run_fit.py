"""One factor on the shipped kernel times from measured runs, by replaying them.

Runs replayed with a few factors give mean E2E by block of requests as a curve over the factor; the factor is where the
curves meet the measured means. Attention, sampling and host time cannot be told apart from latencies of requests, and
the time before the engine (a0) only where several rates were measured: they stay as shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.calibration.applied import with_parameters
from replay.calibration.files import refusal
from replay.calibration.runs import MeasuredRun
from replay.calibration.step_fit import check_plausible
from replay.deployment import Deployment
from replay.errors import FieldError, SpecError, TraceError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import ModelSpec
from replay.simulate import simulate
from replay.workload import Workload

Float64Array = npt.NDArray[np.float64]

FACTORS = np.exp(np.linspace(np.log(0.6), np.log(1.7), 9))
METRICS = ("ttft_s", "itl_s", "e2e_s")
_BLOCKS = 10
_FINE = np.exp(np.linspace(np.log(FACTORS[0]), np.log(FACTORS[-1]), 2001))
RUNS_FOR_A0 = 3
_A0_MOST_S = 0.1


@dataclass(frozen=True)
class _Block:
    """Mean latencies of one block of one run: measured, and at each factor, shape (factors,)."""

    run: int
    label: str
    measured: dict[str, float]
    simulated: dict[str, Float64Array]

    def at(self, metric: str, factor: float) -> float:
        curve = self.simulated[metric]
        return float(np.exp(np.interp(np.log(factor), np.log(FACTORS), np.log(curve))))


@dataclass(frozen=True)
class RunFit:
    """The factor and its standard deviation; a0 where it was fitted; relative errors left out, by metric."""

    factor: float
    factor_sd: float
    request_s: float | None
    request_sd: float | None
    errors: dict[str, Float64Array]
    shipped_errors: dict[str, Float64Array]
    left_out: str
    points: tuple[tuple[str, float, float], ...]
    """Label, measured and predicted mean E2E (s) of each block."""


def fit_runs(runs: Sequence[MeasuredRun], deployment: Deployment, progress: Callable[[float], None]) -> RunFit:
    """Raises TraceError ``calibration.implausible``, ``range``, ``model``, ``twice`` and ``same_prompts``; SpecError
    where a run does not fit."""
    _check_apart(runs, deployment)
    blocks: list[_Block] = []
    total, done = len(runs) * len(FACTORS), 0
    for number, run in enumerate(runs):
        curves = []
        for factor in FACTORS:
            curves.append(_simulated(run, deployment, float(factor)))
            done += 1
            progress(done / total)
        blocks += _blocks(number, run, curves)
    ratios = [block.measured["e2e_s"] / block.at("e2e_s", 1.0) for block in blocks]
    check_plausible(float(np.median(ratios)), "requests")
    factor = _best(blocks)
    if not FACTORS[0] * 1.001 < factor < FACTORS[-1] * 0.999:
        detail = f"no step-time factor between {FACTORS[0]:.2g} and {FACTORS[-1]:.2g} makes the latencies match"
        cure = "check model, GPU type, tp, dtypes, engine and KV blocks; measure below overload"
        raise TraceError("calibration.range", detail, [FieldError(detail, field="measurements", cure=cure)])
    several = len(runs) > 1
    groups = [block.run for block in blocks] if several else [index // 2 for index in range(len(blocks))]
    errors: dict[str, list[float]] = {metric: [] for metric in METRICS}
    shipped: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for group in sorted(set(groups)):
        kept = [block for block, own in zip(blocks, groups, strict=True) if own != group]
        held = [block for block, own in zip(blocks, groups, strict=True) if own == group]
        if not kept:
            continue
        trained = _best(kept)
        for metric in METRICS:
            errors[metric] += [abs(one.at(metric, trained) / one.measured[metric] - 1) for one in held]
            shipped[metric] += [abs(one.at(metric, 1.0) / one.measured[metric] - 1) for one in held]
    request_s, request_sd = _a0(blocks, factor, deployment) if len(runs) >= RUNS_FOR_A0 else (None, None)
    own = np.array([_best([block]) for block in blocks])
    return RunFit(
        factor=factor,
        factor_sd=float(own.std(ddof=1) / np.sqrt(len(own))) if len(own) > 1 else 0.2,
        request_s=request_s,
        request_sd=request_sd,
        errors={metric: np.array(found) for metric, found in errors.items()},
        shipped_errors={metric: np.array(found) for metric, found in shipped.items()},
        left_out="run" if several else "fifth of the run",
        points=tuple((one.label, one.measured["e2e_s"], one.at("e2e_s", factor)) for one in blocks),
    )


def _check_apart(runs: Sequence[MeasuredRun], deployment: Deployment) -> None:
    """Refuses runs of another model, one run given twice, and runs that a prefix cache answered from earlier ones."""
    for run in runs:
        for name in run.models:
            if _is_another(name, deployment.model):
                detail = f"{run.name} was measured with {name[:100]}, not with {deployment.model.key}"
                raise refusal("model", detail, "name the model that was measured")
    for index, run in enumerate(runs):
        for earlier in runs[:index]:
            if np.array_equal(run.e2e_s, earlier.e2e_s, equal_nan=True):
                detail = f"{run.name} and {earlier.name} hold the same latencies"
                raise refusal("twice", detail, "give each measurement once")
            if deployment.engine.enable_prefix_caching and _same_prompts(run.workload, earlier.workload):
                detail = (
                    f"{run.name} and {earlier.name} sent prompts of the same lengths in the same order, as one seed "
                    "draws them: the prefix cache answers the second run from the first"
                )
                cure = (
                    "give each run another --seed; where the server was started anew in between, or caches no "
                    "prefixes, set enable_prefix_caching=false"
                )
                raise refusal("same_prompts", detail, cure)


def _is_another(name: str, model: ModelSpec) -> bool:
    """Whether the catalogue knows ``name`` as a model of another shape; a server may serve under any name."""
    try:
        known = shipped_catalogue().model(name)
    except SpecError:
        return False
    return (known.num_layers, known.hidden_size) != (model.num_layers, model.hidden_size)


def _same_prompts(one: Workload, other: Workload) -> bool:
    """Whether the shorter of both begins the longer; lengths that are all alike tell nothing."""
    n = min(one.n, other.n)
    lengths = one.prompt_tokens[:n]
    return bool(np.array_equal(lengths, other.prompt_tokens[:n]) and (lengths != lengths[0]).any())


def _simulated(run: MeasuredRun, deployment: Deployment, factor: float) -> dict[str, Float64Array]:
    record = deployment.step_time
    scaled = with_parameters(
        record,
        kernels_factor=factor,
        decode_attention_factor=1.0,
        decode_row_s=record.decode_request_ps / 1e12,
        host_s=record.host_ps / 1e12,
        request_s=record.request_overhead_ps / 1e12,
    )
    result = simulate(run.workload, replace(deployment, step_time=scaled), judge_load=False)
    table = result.requests
    if (table.last_token_ps < 0).any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.rejected.items())
        detail = f"{run.name}: requests that cannot run on this deployment: {reasons}"
        cure = "give max_model_len and the engine's limits as the server had them"
        raise SpecError("calibration.unserved", detail, [FieldError(detail, field="deployment", cure=cure)])
    ttft, e2e = (table.first_token_ps - table.arrival_ps) / 1e12, (table.last_token_ps - table.arrival_ps) / 1e12
    gaps = np.maximum(table.output_tokens - 1, 1)
    itl = np.where(table.output_tokens > 1, (e2e - ttft) / gaps, np.nan)
    return {"ttft_s": ttft, "itl_s": itl, "e2e_s": e2e}


def _blocks(number: int, run: MeasuredRun, curves: list[dict[str, Float64Array]]) -> list[_Block]:
    measured = {"ttft_s": run.ttft_s, "itl_s": run.itl_s, "e2e_s": run.e2e_s}
    timed = np.flatnonzero(np.isfinite(run.e2e_s) & np.isfinite(run.itl_s) & np.isfinite(run.ttft_s))
    found = []
    for index, part in enumerate(np.array_split(timed, min(_BLOCKS, max(2, len(timed) // 10)))):
        if len(part) == 0:
            continue
        means = {metric: float(values[part].mean()) for metric, values in measured.items()}
        if min(means.values()) <= 0:
            continue
        simulated = {metric: np.array([curve[metric][part].mean() for curve in curves]) for metric in METRICS}
        label = f"{run.name}, requests {int(part[0]) + 1} to {int(part[-1]) + 1} (part {index + 1})"
        found.append(_Block(number, label[:200], means, simulated))
    if not found:
        detail = f"{run.name}: no request has TTFT, several tokens and an end"
        cure = "measure with streaming and more than one output token"
        raise TraceError("calibration.no_itl", detail, [FieldError(detail, field="measurements", cure=cure)])
    return found


def _best(blocks: Sequence[_Block]) -> float:
    """The factor that makes mean E2E match best, runs counting alike and single odd blocks little."""
    counts = np.bincount([block.run for block in blocks])
    total = np.zeros(len(_FINE))
    for block in blocks:
        curve = np.interp(np.log(_FINE), np.log(FACTORS), np.log(block.simulated["e2e_s"]))
        total += np.abs(curve - np.log(block.measured["e2e_s"])) / counts[block.run]
    return float(_FINE[int(np.argmin(total))])


def _a0(blocks: Sequence[_Block], factor: float, deployment: Deployment) -> tuple[float | None, float | None]:
    """What TTFT misses on the average, added to the shipped a0; ``None`` where runs disagree or it cannot be."""
    missing = [
        float(np.mean([one.measured["ttft_s"] - one.at("ttft_s", factor) for one in blocks if one.run == run]))
        for run in sorted({block.run for block in blocks})
    ]
    value = deployment.step_time.request_overhead_ps / 1e12 + float(np.median(missing))
    sd = float(np.std(missing, ddof=1) / np.sqrt(len(missing)))
    return (value, sd) if 0 < value < _A0_MOST_S and sd < 2e-3 else (None, None)
