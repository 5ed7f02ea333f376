"""The whole report as one table: a row for each candidate of a plan, or one row for a replay."""

from __future__ import annotations

from typing import Any

from api.reports.tables import Cell, Column, Table
from replay.planning.document import (
    Cost,
    Infeasible,
    Operating,
    PlanReport,
    PoolsInfo,
    Recommendation,
    ReplayReport,
    parse_report,
)

_STATS = ("n", "mean", "p50", "p90", "p95", "p99", "max")
_METRICS = ("ttft_s", "ttft_from_admission_s", "itl_s", "tpot_s", "e2e_s", "queue_s")
_RUN = (
    "load_factor",
    "headroom",
    "offered_rps",
    "sustainable_rps",
    "saturated",
    "requests",
    "finished",
    "cancelled",
    "preemptions",
    "kv_usage_mean",
    "kv_usage_max",
    "batch_mean",
    "busy_fraction",
    "steps",
    "duration_s",
    "prompt_tokens",
    "output_tokens",
    "output_tokens_per_s",
    "loop",
)
_COST = ("usd_per_hour", "usd_per_month", "usd_per_1m_output_tokens", "usd_per_1m_tokens")
_PRICE = ("provider", "region", "term", "date", "instance_type", "instances", "paid_gpus", "usd_per_gpu_hour", "source")
_WHERE = ("rank", "status", "model", "gpu", "tp", "replicas", "gpus")
_POOL = (
    *("replicas", "tp", "gpus", "load_factor", "sustainable_rps", "busy_fraction", "batch_mean"),
    *("kv_usage_mean", "kv_usage_max", "preemptions", "steps"),
)
_STEP_TIME = ("provenance", "calibration_id", "stated_error")

Row = dict[str, Cell]


def summary_table(document: dict[str, Any]) -> Table:
    """All figures of a report document, one candidate a row, keys with units."""
    report = parse_report(document)
    rows = _plan_rows(report) if isinstance(report, PlanReport) else [_replay_row(report)]
    keys = list(dict.fromkeys(key for row in rows for key in row)) or ["rank"]
    columns = tuple(Column(key, key) for key in keys)
    return Table("summary", columns, tuple(tuple(row.get(key) for key in keys) for row in rows))


def _plan_rows(report: PlanReport) -> list[Row]:
    rows: list[Row] = []
    for one in report.recommendations:
        row: Row = {key: getattr(one, key, None) for key in _WHERE} | {
            "model": report.model,
            "code": None,
            "reason": None,
        }
        row |= _cost(one) | _certainty(one) | _operating(one)
        row |= _pools(one.pools) if one.pools is not None else {}
        rows.append(row | {f"step_time_{key}": getattr(one.step_time, key) for key in _STEP_TIME})
    return rows + [_infeasible(one, report.model) for one in report.infeasible]


def _certainty(one: Recommendation) -> Row:
    row: Row = {}
    for name, end in zip(("fewest", "most"), one.ends, strict=True):
        row |= {f"{name}_{key}": getattr(end, key, None) for key in ("replicas", "gpus", "usd_per_hour")}
    row |= {"may_be_cheapest": one.may_be_cheapest, "measure_first": one.measure_first}
    errors = ("step_time_error", "prefill_error", "decode_error", "kv_error")
    names = {name: name for name in (*errors, "how_sure")} | {"why": "sentence"}
    return row | {f"certainty_{name}": getattr(one.certainty, key, None) for name, key in names.items()}


def _infeasible(one: Infeasible, model: str) -> Row:
    where: Row = {"rank": None, "status": "infeasible", "model": model, "gpu": one.gpu, "tp": one.tp}
    return where | {"replicas": None, "gpus": None, "code": one.code, "reason": one.reason}


def _replay_row(report: ReplayReport) -> Row:
    where: Row = {"status": report.verdict.status, "model": report.model, "gpu": report.gpu, "tp": report.tp}
    where |= {"replicas": report.replicas, "gpus": report.gpus}
    row = where | _cost(report.cost) | _operating(report.operating)
    row |= _pools(report.pools) if report.pools is not None else {}
    return row | {f"step_time_{key}": getattr(report.step_time, key) for key in _STEP_TIME}


def _pools(pools: PoolsInfo) -> Row:
    row: Row = {"binding": pools.binding, "first_token_from": pools.first_token_from}
    row["transfer_rps"] = pools.transfer_rps
    for name in _STATS:
        row["kv_transfer_" + (name if name == "n" else f"{name}_s")] = getattr(pools.kv_transfer_s, name)
    for pool in ("prefill", "decode"):
        row |= {f"{pool}_{key}": getattr(getattr(pools, pool), key) for key in _POOL}
    return row


def _cost(cost: Cost) -> Row:
    row: Row = {key: getattr(cost, key) for key in _COST}
    row |= {f"price_{key}": getattr(cost.price, key) if cost.price else None for key in _PRICE}
    return row | {"price_reason": cost.price_reason, "per_token_reason": cost.per_token_reason}


def _operating(run: Operating) -> Row:
    row: Row = {key: getattr(run, key) for key in _RUN}
    row["rejected"] = "; ".join(f"{reason}: {n}" for reason, n in run.rejected.items())
    for metric in _METRICS:
        stats = getattr(run.metrics, metric)
        row |= {
            f"{metric.removesuffix('_s')}_{name}" + ("" if name == "n" else "_s"): getattr(stats, name)
            for name in _STATS
        }
    if run.scored is not None:
        row["scored"] = run.scored
    if run.goodput is not None:
        row |= {"goodput_rps": run.goodput.requests_per_s, "good_share": run.goodput.share, "good": run.goodput.good}
    for outcome in run.objectives:
        row |= {
            f"objective_{outcome.name}_threshold_s": outcome.threshold_s,
            f"objective_{outcome.name}_met": outcome.met,
            f"objective_{outcome.name}_attained": outcome.attained,
        }
    return row
