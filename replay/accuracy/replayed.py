"""One measured run replayed: measured and simulated figures side by side, and what the rules let count."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from replay.accuracy.closed_loop import sent_ps, with_seats
from replay.accuracy.regions import MEAN_NEEDS, P99_NEEDS, Region, region_of, scored_rows
from replay.accuracy.runs import MeasuredRun
from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.hardware.catalogue import Catalogue
from replay.results import ReplayResult
from replay.simulate import simulate
from replay.steptime.record import StepTime

Float64Array = npt.NDArray[np.float64]
Figures = dict[str, dict[str, float]]

METRICS = ("ttft_s", "itl_s", "e2e_s")
STATISTICS = ("mean", "p50", "p90", "p99")
_PERCENTILES = (50, 90, 99)
_FEW_FAILED = 0.01
RATE_ERROR_LEAST, RATE_ERROR_MOST = 0.5, 2.0
_RATE_TRIES = 8
_E2E_MATCHES = 2e-3


@dataclass(frozen=True)
class Figure:
    """One statistic: seconds measured and simulated; ``error`` is simulated / measured - 1 where the rules let it
    count."""

    measured: float
    simulated: float
    counts: bool

    @property
    def relative(self) -> float:
        return self.simulated / self.measured - 1.0

    @property
    def error(self) -> float | None:
        return self.relative if self.counts else None


@dataclass(frozen=True)
class ScoredRun:
    """A run beside its replay."""

    experiment: str
    gpu: str
    """Catalogue key."""
    model: str
    tp: int
    has_experts: bool
    aggregates_only: bool
    n: int
    """Requests that the figures are of."""
    region: Region
    unscored: str | None
    quality: str
    provenance: str
    calibration_id: str
    figures: dict[str, dict[str, Figure]]
    throughput: Figure | None
    """Output tokens a second."""
    saturated: bool
    load_factor: float | None
    rate_per_s: float | None = None
    """Requests sent a second; ``None`` where the rate steps, or the client waits for ends."""
    rate_error: float | None = None
    """Near saturation: how much too long steps are, by the factor on them that makes mean E2E match."""
    notes: tuple[str, ...] = field(default=())

    @property
    def saturated_expected(self) -> bool:
        return self.quality == "overload"

    @property
    def deployment(self) -> tuple[str, str, int]:
        return self.gpu, self.model, self.tp


def resolved(run: MeasuredRun, catalogue: Catalogue) -> Deployment:
    """The deployment that replays a run.

    Raises:
        SpecError: what of the server is unknown or cannot be replayed.
    """
    spec = run.server.deployment()
    return resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))


def score_run(run: MeasuredRun, deployment: Deployment, *, rate_error: bool = True) -> ScoredRun:
    """Replays ``run`` on ``deployment`` and compares. ``rate_error``: look for it near saturation (a few replays)."""
    seats = deployment.engine.max_num_seqs * deployment.replicas
    region = region_of(run, seats)
    measured, counted = _measured(run)
    simulated, tokens_per_s, result = _simulated(run, deployment)
    figures = {
        metric: {
            name: Figure(value, simulated[metric][name], _counts(run, region, metric, name, counted))
            for name, value in measured[metric].items()
            if name in simulated[metric]
        }
        for metric in METRICS
    }
    factor = None
    if rate_error and region == "near" and run.unscored is None:
        factor = _rate_error(run, deployment, measured["e2e_s"]["mean"], simulated["e2e_s"]["mean"])
    return ScoredRun(
        experiment=run.experiment,
        gpu=deployment.gpu.key,
        model=run.server.model,
        tp=run.server.tp,
        has_experts=deployment.model.num_moe_layers > 0,
        aggregates_only=run.rows is None,
        n=counted,
        region=region,
        unscored=run.unscored,
        quality=run.server.quality,
        provenance=deployment.step_time.provenance,
        calibration_id=deployment.step_time.calibration_id,
        figures=figures,
        throughput=_throughput(run, tokens_per_s),
        saturated=result.saturated,
        load_factor=result.load_factor,
        rate_per_s=_rate_per_s(run),
        rate_error=factor,
        notes=run.notes,
    )


def _rate_per_s(run: MeasuredRun) -> float | None:
    staged = run.rows is not None and bool((run.rows.stage != run.rows.stage[0]).any())
    if run.in_flight is not None or staged or (run.aggregates is not None and len(run.aggregates.stages) > 1):
        return None
    return run.workload.n / run.workload.span_s


def _counts(run: MeasuredRun, region: Region, metric: str, statistic: str, n: int) -> bool:
    """Whether the rules let one statistic of a run count."""
    if run.unscored is not None or region == "above":
        return False
    if statistic == "p99":
        return run.rows is not None and region == "below" and n >= P99_NEEDS
    return n >= MEAN_NEEDS


def statistics(values: Float64Array) -> dict[str, float]:
    """Mean and numpy-linear percentiles."""
    at = np.percentile(values, _PERCENTILES)
    return {"mean": float(values.mean()), **{f"p{q}": float(v) for q, v in zip(_PERCENTILES, at, strict=True)}}


def _measured(run: MeasuredRun) -> tuple[Figures, int]:
    if run.rows is None:
        if run.aggregates is None:
            raise ValueError("a run has rows or aggregates")
        return run.aggregates.figures_s, run.workload.n if run.aggregates.n is None else run.aggregates.n
    rows, scored = run.rows, scored_rows(run.rows)
    itl = rows.itl_s[scored]
    values = {"ttft_s": rows.ttft_s[scored], "itl_s": itl[np.isfinite(itl)], "e2e_s": rows.e2e_s[scored]}
    return {metric: statistics(found) for metric, found in values.items()}, int(scored.sum())


def _simulated(run: MeasuredRun, deployment: Deployment) -> tuple[Figures, float, ReplayResult]:
    """Simulated figures of the requests that the measured ones are of, output tokens a second, and the replay."""
    if run.in_flight is not None:
        deployment = with_seats(deployment, run.in_flight)
    result = simulate(run.workload, deployment)
    table = result.requests
    served = table.last_token_ps >= 0
    if not served.all():
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.rejected.items())
        raise _unserved(reasons)
    sent = table.arrival_ps
    if run.in_flight is not None:
        sent = sent_ps(sent, table.last_token_ps, run.in_flight)
    ttft, e2e = (table.first_token_ps - sent) / 1e12, (table.last_token_ps - sent) / 1e12
    tokens = table.output_tokens
    scored = served if run.rows is None else scored_rows(run.rows)
    if run.window_s is not None:
        scored = scored & ((table.last_token_ps - int(sent.min())) / 1e12 <= run.window_s)
    several = scored & (tokens > 1)
    values = {
        "ttft_s": ttft[scored],
        "itl_s": ((e2e - ttft)[several] / (tokens[several] - 1)),
        "e2e_s": e2e[scored],
    }
    ends_s = (table.last_token_ps - int(sent.min())) / 1e12
    span_s = float(ends_s.max()) if run.window_s is None else run.window_s
    tokens_per_s = int(tokens[ends_s <= span_s].sum()) / span_s
    return {metric: statistics(found) for metric, found in values.items()}, tokens_per_s, result


def _unserved(reasons: str) -> SpecError:
    return SpecError("accuracy.unserved", f"requests of it cannot run on the deployment as replayed: {reasons}")


def _throughput(run: MeasuredRun, simulated: float) -> Figure | None:
    """Output tokens a second, from the first sending to the last end; counts where only throughput does."""
    if run.throughput is not None:
        return Figure(run.throughput, simulated, run.throughput_only)
    rows = run.rows
    if rows is None or (~rows.ok).mean() > _FEW_FAILED:
        return None
    sent = rows.arrival_s[rows.ok]
    span_s = float((sent + rows.e2e_s[rows.ok]).max() - sent.min())
    return Figure(int(rows.output_tokens[rows.ok].sum()) / span_s, simulated, run.throughput_only)


def scaled(record: StepTime, factor: float) -> StepTime:
    """The record with every step ``factor`` times as long; what comes before the engine stays."""
    times = {
        name: np.rint(getattr(record, name) * factor).astype(np.int64)
        for name in ("rest_ps", "decode_table_ps", "prefill_table_ps")
    }
    law = {
        name: round(getattr(record, name) * factor)
        for name in ("decode_request_ps", "decode_linear_ps", "prefill_linear_ps", "host_ps", "host_per_request_ps")
    }
    return replace(record, **times, **law)


def _rate_error(run: MeasuredRun, deployment: Deployment, measured_s: float, simulated_s: float) -> float | None:
    """Secant search on log E2E over log step time, which is nearly straight; ``None`` beyond a factor of two."""
    before, error = 0.0, float(np.log(simulated_s / measured_s))
    step = -error / 2.0
    for _ in range(_RATE_TRIES):
        at = float(np.clip(before + step, np.log(RATE_ERROR_LEAST), np.log(RATE_ERROR_MOST)))
        again = replace(deployment, step_time=scaled(deployment.step_time, float(np.exp(at))))
        value = float(np.log(_simulated(run, again)[0]["e2e_s"]["mean"] / measured_s))
        if abs(value) < _E2E_MATCHES:
            return 1.0 / float(np.exp(at)) - 1.0
        if at == before or (slope := (value - error) / (at - before)) <= 0:
            return None
        before, error, step = at, value, -value / slope
    return None
