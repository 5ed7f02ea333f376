"""Experiment folders to runs: what was sent to which server, and what was measured.

Layouts are known by ``group`` of ``server.json``; docs/accuracy.md lists what is wrong with the data of each, and what
is done about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.accuracy.server import Server, read_json, read_server, unusable
from replay.accuracy.table import RequestRows, read_rows
from replay.errors import SpecError
from replay.workload import PrefixBlocks, Workload

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

PS_PER_S = 1e12
BLOCK_TOKENS = 16
CLIENT_IN_FLIGHT = 256
"""Requests that the load generator of the observe runs had in flight at most (README of the data, trap 7)."""
SWEEP_IN_FLIGHT = 512
SWEEP_POINT_S = 120.0
"""Of the rate sweep: its load generator's limit, and how long each point ran (notes of its server.json)."""
ASSUMED_PROMPTS, ASSUMED_GROUPS = 100, 10
"""Distinct prompts and groups of the inference-perf campaign where a run gives none: all of its runs that do, agree."""
_ENOUGH_FOR_A_POINT = 60
"""Requests for each one under way: more than a point of the sweep can finish in its time."""
_ARRIVAL_SEED = 15_000
_KINDS = ("infperf-per-request", "infperf-aggregate", "lmbench-per-request", "observe-per-request", "e2e-sweep")


@dataclass(frozen=True)
class Aggregates:
    """Published figures of a run without rows: metric -> statistic -> seconds, over all of its requests."""

    figures_s: dict[str, dict[str, float]]
    by_stage_s: tuple[dict[str, dict[str, float]], ...] = ()
    stages: tuple[tuple[float, float], ...] = ()
    """Rate (requests a second) and duration (seconds) of each stage."""
    n: int | None = None
    """Requests that the figures are of; ``None``: those of the workload."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run: a workload, the server it met, and what was measured."""

    experiment: str
    server: Server
    workload: Workload
    rows: RequestRows | None
    """In the workload's order; ``None`` where only aggregates are public."""
    aggregates: Aggregates | None = None
    in_flight: int | None = None
    """The client never had more requests under way than this: it sent the next one when one ended."""
    throughput: float | None = None
    """Measured output tokens a second, where it is not to be computed from the rows."""
    window_s: float | None = None
    """Throughput is of the requests that ended this long after the first was sent; ``None``: of all."""
    unscored: str | None = None
    """Why no latency of it is scored; ``None``: it is."""
    throughput_only: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unreplayed:
    """An experiment that is not replayed, and why. ``field`` names what in the file says so."""

    experiment: str
    reason: str
    field: str | None = None


def read_runs(root: Path, only: str = "") -> Iterator[MeasuredRun | Unreplayed]:
    """Every experiment below ``root`` with ``only`` in its name: a run (of a sweep: one for each rate), or the reason
    why not.

    Raises:
        SpecError: ``accuracy.empty`` where no folder holds a ``server.json``.
    """
    folders = sorted(path.parent for path in root.glob("*/server.json"))
    if not folders and (root / "server.json").is_file():
        folders = [root]
    if not folders:
        if not root.is_dir():
            raise NotADirectoryError(20, "not a folder", str(root))
        raise SpecError("accuracy.empty", f"no folder below {root} holds a server.json: name the folder of experiments")
    chosen = [folder for folder in folders if only in folder.name]
    if not chosen:
        raise SpecError("accuracy.empty", f"no experiment below {root} has {only!r} in its name")
    for folder in chosen:
        try:
            yield from read_experiment(folder)
        except SpecError as error:
            field = error.errors[0].field if error.errors else None
            yield Unreplayed(folder.name, error.detail, field)


def read_experiment(folder: Path) -> Iterator[MeasuredRun | Unreplayed]:
    """The runs of one experiment.

    Raises:
        SpecError: naming file and field of what cannot be used.
    """
    server = read_server(folder)
    if server.group == "step-level":
        yield Unreplayed(folder.name, "single steps, no requests: score-steps compares steps", "group")
        return
    if server.group not in _KINDS:
        raise unusable("group", f"the layout {server.group!r} is not known; known are {', '.join(_KINDS)}")
    summary = read_json(folder / "summary.json")
    if server.group == "e2e-sweep":
        yield from _sweep(folder.name, server, summary)
    elif server.group == "infperf-aggregate":
        yield _aggregate(folder.name, server, summary)
    else:
        yield _per_request(folder, server, summary)


def _workload_of(summary: dict[str, Any]) -> dict[str, Any]:
    workload = summary.get("workload")
    if not isinstance(workload, dict):
        raise unusable("workload", "missing or no object", "summary.json")
    return workload


def _number(owner: dict[str, Any], field: str) -> float:
    value = owner.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise unusable(field, f"{value!r} is no number above 0", "summary.json")
    return float(value)


def _per_request(folder: Path, server: Server, summary: dict[str, Any]) -> MeasuredRun:
    spec = _workload_of(summary)
    measured = summary.get("measured", {}).get("all", {})
    means = {m: measured[m]["mean"] for m in ("ttft_s", "e2e_s") if isinstance(measured.get(m, {}).get("mean"), float)}
    rows = read_rows(folder, ignore_eos=bool(spec.get("ignore_eos")), means_s=means)
    notes: list[str] = []
    prefix = None
    if server.group.startswith("infperf"):
        distinct = int(spec.get("distinct_prompts") or ASSUMED_PROMPTS)
        groups = int(spec.get("prefix_groups") or ASSUMED_GROUPS)
        rows = _with_lengths(rows, distinct)
        prefix = repeated_prompts(rows.prompt_tokens, distinct, groups, int(spec.get("system_prompt_len") or 0))
        notes.append(f"{distinct} distinct prompts, sent round and round: what the prefix cache holds is not computed")
    known = rows.prompt_tokens > 0
    if not known.all():
        raise unusable("prompt_tokens", f"{int((~known).sum())} requests have no prompt length", "requests.csv.gz")
    throughput_only = server.quality != "ok"
    in_flight = CLIENT_IN_FLIGHT if server.quality == "client-limited" else None
    arrival = rows.arrival_s
    if in_flight is not None and rows.planned_s is not None:
        order = np.argsort(rows.planned_s, kind="stable")
        arrival = rows.planned_s[order] - rows.planned_s[order[0]]
        rows = _reorder(rows, order)
        notes.append(f"replayed closed loop: planned sending, at most {in_flight} requests under way")
    unscored = None
    if server.group == "lmbench-per-request" and "sharegpt" in str(spec.get("benchmark", "")).lower():
        unscored = "ShareGPT on these servers: KV blocks, cached share of the prompts and routing are unknown"
    elif throughput_only:
        unscored = f"quality {server.quality}: throughput only"
    return MeasuredRun(
        experiment=folder.name,
        server=server,
        workload=_workload(arrival, rows.prompt_tokens, rows.output_tokens, prefix),
        rows=rows,
        in_flight=in_flight,
        unscored=unscored,
        throughput_only=throughput_only,
        notes=tuple(notes),
    )


def _with_lengths(rows: RequestRows, distinct: int) -> RequestRows:
    """Failed requests have no prompt length; prompts come round and round, so another round's has it."""
    if (rows.prompt_tokens > 0).all():
        return rows
    place = np.arange(rows.n) % distinct
    known = rows.prompt_tokens > 0
    typical = np.full(distinct, int(np.median(rows.prompt_tokens[known])), np.int64)
    typical[place[known]] = rows.prompt_tokens[known]
    return replace(rows, prompt_tokens=np.where(known, rows.prompt_tokens, typical[place]))


def _reorder(rows: RequestRows, order: Int64Array) -> RequestRows:
    return RequestRows(
        arrival_s=rows.arrival_s[order],
        planned_s=None if rows.planned_s is None else rows.planned_s[order],
        prompt_tokens=rows.prompt_tokens[order],
        output_tokens=rows.output_tokens[order],
        ttft_s=rows.ttft_s[order],
        e2e_s=rows.e2e_s[order],
        ok=rows.ok[order],
        stage=rows.stage[order],
    )


def repeated_prompts(prompt_tokens: Int64Array, distinct: int, groups: int, shared_tokens: int) -> PrefixBlocks:
    """Block ids where ``distinct`` prompts are sent in turn, the prompts of a group sharing their first tokens.

    Prompts of a turn are taken to be the same tokens, cut or extended to each request's own length.
    """
    counts = -(-prompt_tokens // BLOCK_TOKENS)
    widest = int(counts.max(initial=1))
    shared = shared_tokens // BLOCK_TOKENS
    prompt = np.arange(len(prompt_tokens)) % distinct
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(start[-1]) - start[owner]
    own = groups * widest + prompt[owner] * widest + place
    of_group = (prompt[owner] % groups) * widest + place
    return PrefixBlocks(start, np.where(place < shared, of_group, own).astype(np.int64), BLOCK_TOKENS)


def _workload(arrival_s: Float64Array, prompt: Int64Array, output: Int64Array, prefix: PrefixBlocks | None) -> Workload:
    n = len(arrival_s)
    last = float(arrival_s[-1])
    span_s = last * n / (n - 1) if n > 1 and last > 0 else 1.0
    return Workload(np.rint(arrival_s * PS_PER_S).astype(np.int64), prompt, output, span_s, prefix=prefix)


def _aggregate(name: str, server: Server, summary: dict[str, Any]) -> MeasuredRun:
    """Rates by stage, lengths as aimed at; Poisson arrivals of a fixed seed stand for those that were not published."""
    spec = _workload_of(summary)
    stages = spec.get("stages")
    if not isinstance(stages, list) or not stages:
        raise unusable("stages", "missing: the load is not known", "summary.json")
    pairs = tuple((_number(stage, "rate"), _number(stage, "duration")) for stage in stages)
    output, prompt = int(_number(spec, "max_tokens")), int(_number(spec, "prompt_tokens_target"))
    arrival = _poisson(pairs)
    count = len(arrival)
    prompts = np.full(count, prompt, np.int64)
    distinct, groups = int(spec.get("distinct_prompts") or ASSUMED_PROMPTS), ASSUMED_GROUPS
    shared = int(spec.get("system_prompt_len") or 0)
    prefix = repeated_prompts(prompts, distinct, groups, shared) if server.prefix_caching is not False else None
    measured = summary.get("measured", {})
    notes = ["aggregates only: arrivals are drawn at the stated rates, and nothing can be trimmed"]
    if str(spec.get("workload_source", "")).startswith("INFERRED"):
        notes.append("the rates are inferred from the workload's name")
    by_stage = tuple(_figures(measured.get(f"stage{i}", {}), output) for i in range(len(pairs)))
    return MeasuredRun(
        experiment=name,
        server=server,
        workload=_workload(arrival, prompts, np.full(count, output, np.int64), prefix),
        rows=None,
        aggregates=Aggregates(_figures(measured.get("all", {}), output), by_stage, pairs),
        unscored=None if server.quality == "ok" else f"quality {server.quality}: aggregates only, no throughput known",
        notes=tuple(notes),
    )


def _poisson(stages: tuple[tuple[float, float], ...]) -> Float64Array:
    rng = np.random.Generator(np.random.PCG64(_ARRIVAL_SEED))
    parts, at = [], 0.0
    for rate, duration in stages:
        count = round(rate * duration)
        parts.append(at + np.sort(rng.random(count)) * duration)
        at += duration
    arrival: Float64Array = np.concatenate(parts)
    return arrival - float(arrival[0])


def _figures(measured: dict[str, Any], output_tokens: int) -> dict[str, dict[str, float]]:
    """TTFT and E2E as published; ITL from their means and the true length, since the published one divides by a recount
    of the text."""
    found = {m: dict(measured[m]) for m in ("ttft_s", "e2e_s") if isinstance(measured.get(m), dict)}
    for metric in ("ttft_s", "e2e_s"):
        if "mean" not in found.get(metric, {}):
            raise unusable(f"measured.{metric}.mean", "missing", "summary.json")
    itl = (found["e2e_s"]["mean"] - found["ttft_s"]["mean"]) / max(output_tokens - 1, 1)
    return {**found, "itl_s": {"mean": itl}}


def _sweep(name: str, server: Server, summary: dict[str, Any]) -> Iterator[MeasuredRun]:
    """One run for each rate of a sweep with exact lengths; times there are in milliseconds."""
    spec = _workload_of(summary)
    prompt, output = int(_number(spec, "prompt_tokens")), int(_number(spec, "output_tokens"))
    points = summary.get("sweep")
    if not isinstance(points, list) or not points:
        raise unusable("sweep", "missing: no rate is given", "summary.json")
    if not str(summary.get("sweep_unit", "")).startswith("ms"):
        raise unusable("sweep_unit", "only milliseconds for ttft and itl are known", "summary.json")
    for point in points:
        yield _sweep_point(name, server, {k: _as_number(v) for k, v in point.items()}, prompt, output)


def _as_number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _sweep_point(name: str, server: Server, point: dict[str, Any], prompt: int, output: int) -> MeasuredRun:
    kind = str(point.get("strat"))
    if kind == "constant":
        rate = _number(point, "rate")
        label, in_flight, count = f"{rate:.3g}rps", None, max(2, round(rate * SWEEP_POINT_S))
        arrival = np.arange(count) / rate
    elif kind in ("synchronous", "throughput"):
        in_flight = 1 if kind == "synchronous" else SWEEP_IN_FLIGHT
        label, count = kind, _ENOUGH_FOR_A_POINT * in_flight
        arrival = np.zeros(count)
    else:
        raise unusable("strat", f"{kind!r} is not known; known are constant, synchronous, throughput", "summary.json")
    ttft = {"mean": _number(point, "ttft_mean") / 1e3, "p50": _number(point, "ttft_med") / 1e3}
    itl = {"mean": _number(point, "itl_mean") / 1e3, "p50": _number(point, "itl_med") / 1e3}
    e2e = {"mean": ttft["mean"] + itl["mean"] * (output - 1)}
    saturating = kind == "throughput"
    return MeasuredRun(
        experiment=f"{name}@{label}",
        server=server,
        workload=_workload(arrival, np.full(count, prompt, np.int64), np.full(count, output, np.int64), None),
        rows=None,
        aggregates=Aggregates({"ttft_s": ttft, "itl_s": itl, "e2e_s": e2e}, n=int(_number(point, "n"))),
        in_flight=in_flight,
        throughput=_number(point, "outtps") if in_flight is not None else None,
        window_s=SWEEP_POINT_S if in_flight is not None else None,
        unscored="as many requests as the client may have under way: throughput only" if saturating else None,
        throughput_only=saturating,
        notes=("E2E is the mean TTFT plus the mean ITL of the other tokens",),
    )
