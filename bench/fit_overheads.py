"""Fits the overheads of a served step on measured runs, and says how well they carry over to a deployment left out.

Usage: python bench/fit_overheads.py [FOLDER] [GPU]   (default ../shared/reference/blis H100-SXM)

Every scored run of a dense model on the GPU type is replayed once with the shipped constants and once with each
constant moved a little: errors of ITL and TTFT are nearly straight in the constants over such steps. The constants are
those of the least sum of absolute log errors, each deployment weighing the same and each constant held to "nothing
beyond kernels" with the strength of its range; then the same with each deployment left out in turn. The columns "left
out" are what counts.
"""

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from replay.accuracy.replayed import resolved, score_run
from replay.accuracy.runs import MeasuredRun, read_runs
from replay.deployment import Deployment
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.steptime import overheads as shipped
from replay.steptime.record import StepTime
from replay.steptime.roofline import generation

NAMES = ("m", "row us", "row per vocabulary ns", "all-reduce us", "host 0.8 ms", "host V1 ms", "request ms", "eta")
NEUTRAL = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.92])
"""Nothing beyond kernels: where every fit starts, so that the shipped constants lend nothing to it. (The share of
bandwidth has no such value; its start is the published one.)"""
RANGE = np.array([0.04, 5.0, 0.15, 2.0, 1.0, 1.5, 8.0, 0.05])
"""How far each constant may be from neutral at the price of one deployment being 3 % off; the row per vocabulary by
GPU."""
PRICE = 0.03
TTFT_WEIGHT = 0.5
_ROUNDS = 60


def shipped_values(gpu_generation: str) -> np.ndarray:
    vocab = shipped.DECODE_ROW_PER_VOCAB_S.get(gpu_generation, shipped.DECODE_ROW_PER_VOCAB_ELSEWHERE_S)
    return np.array(
        [
            shipped.KERNELS_FACTOR.get(gpu_generation, shipped.KERNELS_FACTOR_ELSEWHERE),
            shipped.DECODE_ROW_S * 1e6,
            vocab * 1e9,
            shipped.ALL_REDUCE_S * 1e6,
            shipped.HOST_V1_FIRST.step_s * 1e3,
            shipped.HOST_V1.step_s * 1e3,
            shipped.REQUEST_S * 1e3,
            shipped.DECODE_BANDWIDTH_SHARE,
        ]
    )


def moved(deployment: Deployment, old: np.ndarray, new: np.ndarray) -> Deployment:
    """The deployment with other constants: its record is linear in them."""
    record, engine = deployment.step_time, deployment.engine
    tp, layers = deployment.spec.tp, deployment.model.num_layers
    reduces = (2 * layers + 1) * (tp.bit_length() - 1) if tp > 1 else 0
    added, added_new = (round(reduces * values[3] * 1e6) for values in (old, new))
    scale = new[0] / old[0]
    rest = np.where(record.rest_ps > 0, np.rint((record.rest_ps - added) * scale) + added_new, 0).astype(np.int64)
    row = new[1] - old[1] + (new[2] - old[2]) * 1e-3 * deployment.model.vocab_size
    host = record.host_ps
    if not engine.async_scheduling:
        place = 4 if engine.version in ("vllm-0.8", "vllm-0.9") else 5
        host += round((new[place] - old[place]) * 1e9)
    times: StepTime = replace(
        record,
        rest_ps=rest,
        decode_table_ps=np.rint(record.decode_table_ps * scale).astype(np.int64),
        prefill_table_ps=np.rint(record.prefill_table_ps * scale).astype(np.int64),
        decode_linear_ps=round(record.decode_linear_ps * old[7] / new[7]),
        prefill_step_ps=round(record.prefill_step_ps * scale),
        decode_request_ps=record.decode_request_ps + round(row * 1e6),
        host_ps=host,
        request_overhead_ps=record.request_overhead_ps + round((new[6] - old[6]) * 1e9),
    )
    return replace(deployment, step_time=times)


def logs(run: MeasuredRun, deployment: Deployment) -> np.ndarray:
    """log(simulated / measured) of mean ITL and mean TTFT; TTFT is NaN where it is no steady figure."""
    scored = score_run(run, deployment, rate_error=False)
    itl, ttft = scored.figures["itl_s"]["mean"], scored.figures["ttft_s"]["mean"]
    steady = scored.region == "below" and ttft.counts
    return np.log([1 + itl.relative if itl.counts else np.nan, 1 + ttft.relative if steady else np.nan])


def fit(y: np.ndarray, slopes: np.ndarray, weight: np.ndarray, start: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Steps from the shipped constants by reweighted least squares:
    ``min sum w |y + J x| + sum |PRICE (x - start) / reach|``."""
    x = np.zeros(len(NAMES))
    prior = np.diag(PRICE / reach)
    for _ in range(_ROUNDS):
        residual = np.abs(y + slopes @ x)
        w = weight / np.maximum(residual, 3e-3)
        p = 1 / np.maximum(np.abs(prior @ (x - start)), 3e-3)
        left = slopes.T @ (w[:, None] * slopes) + prior.T @ (p[:, None] * prior)
        x = np.linalg.solve(left, prior.T @ (p[:, None] * prior) @ start - slopes.T @ (w * y))
    return x


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference/blis")
    catalogue = shipped_catalogue()
    gpu = catalogue.gpu(sys.argv[2] if len(sys.argv) > 2 else "H100-SXM")
    old = shipped_values(generation(gpu))
    rows = []
    for run in read_runs(folder):
        if not isinstance(run, MeasuredRun) or run.unscored is not None or run.server.quality != "ok":
            continue
        try:
            deployment = resolved(run, catalogue)
        except SpecError:
            continue
        if deployment.gpu.key != gpu.key or deployment.model.num_moe_layers:
            continue
        y = logs(run, deployment)
        columns = []
        for i, reach in enumerate(RANGE):
            new = old.copy()
            new[i] += reach / 4
            columns.append((logs(run, moved(deployment, old, new)) - y) / (reach / 4))
        name = f"{run.server.model.rsplit('/', 1)[-1]} TP{run.server.tp}"
        for metric in (0, 1):
            if np.isfinite(y[metric]):
                rows.append((name, metric, y[metric], np.array([column[metric] for column in columns])))
        print(f"... {run.experiment}", file=sys.stderr)
    names, metrics = [row[0] for row in rows], np.array([row[1] for row in rows])
    y, slopes = np.array([row[2] for row in rows]), np.nan_to_num(np.stack([row[3] for row in rows]))
    count = {key: sum(n == key[0] and m == key[1] for n, m in zip(names, metrics, strict=True)) for key in
             {(n, int(m)) for n, m in zip(names, metrics, strict=True)}}  # fmt: skip
    weight = np.array([(TTFT_WEIGHT if m else 1.0) / count[n, int(m)] for n, m in zip(names, metrics, strict=True)])
    start, reach = NEUTRAL - old, RANGE.copy()
    reach[2] = old[2]
    x = fit(y, slopes, weight, start, reach)
    print("| constant | shipped | fitted | lowest left out | highest left out |\n|---|---|---|---|---|")
    deployments = sorted(set(names))
    chosen = {}
    for name in deployments:
        kept = np.array([n != name for n in names])
        chosen[name] = fit(y[kept], slopes[kept], weight[kept], start, reach)
    for i, label in enumerate(NAMES):
        values = [old[i] + found[i] for found in chosen.values()] or [np.nan]
        print(f"| {label} | {old[i]:.3g} | {old[i] + x[i]:.3g} | {min(values):.3g} | {max(values):.3g} |")
    print(
        "\n| deployment | runs | ITL shipped | fitted | left out | TTFT shipped | fitted | left out |\n"
        + "|---" * 8
        + "|"
    )
    overall = defaultdict(list)
    for name in deployments:
        cells = []
        for metric in (0, 1):
            mine = np.array([n == name and m == metric for n, m in zip(names, metrics, strict=True)])
            for label, step in (("shipped", np.zeros(len(old))), ("fitted", x), ("left out", chosen[name])):
                if not mine.any():
                    cells.append("-")
                    continue
                errors = np.exp(y[mine] + slopes[mine] @ step) - 1
                overall[metric, label].append(float(np.median(np.abs(errors))))
                cells.append(f"{100 * np.median(errors):+.1f} %")
        print(f"| {name} | {sum(n == name for n in names)} | {' | '.join(cells)} |")
    cells = [f"{100 * median(values):.1f} %" for values in overall.values()]
    print(f"| median of deployments, absolute | {len(rows)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
