"""The tables and charts of a report, made from its document. The template only arranges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.reports import figures
from api.reports.tables import Cell, Column, Table
from replay.planning.document import (
    Cost,
    Operating,
    PlanReport,
    PoolsInfo,
    Recommendation,
    ReplayReport,
    StepTimeInfo,
    WorkloadInfo,
)
from replay.planning.parts import CurvePoint, MemoryBreakdown, Metrics, ObjectiveOutcome

METRIC_NAMES = {
    "ttft_s": "TTFT: time to first token, from arrival",
    "ttft_from_admission_s": "TTFT from admission by the engine",
    "itl_s": "ITL: gap between tokens, pooled over tokens",
    "tpot_s": "TPOT: mean time per output token of a request",
    "e2e_s": "E2E: arrival to last token",
    "queue_s": "Queue: arrival to first scheduled",
}


@dataclass(frozen=True)
class Chart:
    """A figure, what it shows in words, and the table with the same numbers."""

    id: str
    title: str
    text: str
    figure: figures.Figure | None
    table: Table


def label(gpu: str, tp: int, replicas: int, ranks: int = 1) -> str:
    """``3 x H100-SXM`` or ``2 x DP8 TP2 H100-SXM``: how a deployment is named in tables."""
    parts = [f"DP{ranks}"] * (ranks > 1) + [f"TP{tp}"] * (tp > 1) + [gpu]
    return f"{replicas} x {' '.join(parts)}"


def label_of(one: Recommendation | ReplayReport) -> str:
    """The same for a recommendation or a replay's deployment, both pools where it has two."""
    if one.pools is None:
        return label(one.gpu, one.tp, one.replicas, one.gpus // (one.tp * one.replicas))
    parts = (("prefill", one.pools.prefill), ("decode", one.pools.decode))
    return " + ".join(f"{name} {label(one.gpu, pool.tp, pool.replicas)}" for name, pool in parts)


def alternatives(report: PlanReport) -> Chart:
    """All feasible candidates, cheapest first; those without a range come last."""
    names = [outcome.name for outcome in report.recommendations[0].objectives] if report.recommendations else []
    apart = any(one.pools is not None for one in report.recommendations)
    columns = (
        Column("rank", "rank"),
        Column("GPU type", "gpu", "name"),
        Column("TP", "tp"),
        Column("replicas", "replicas"),
        *((Column("prefill", "prefill_replicas"), Column("decode", "decode_replicas")) if apart else ()),
        Column("GPUs", "gpus"),
        Column("fewest GPUs within the error", "fewest_gpus"),
        Column("most GPUs within the error", "most_gpus"),
        Column("paid GPUs", "paid_gpus"),
        Column("USD/hour", "usd_per_hour", "usd"),
        Column("least USD/hour", "fewest_usd_per_hour", "usd"),
        Column("most USD/hour", "most_usd_per_hour", "usd"),
        Column("USD/month", "usd_per_month", "usd"),
        Column("USD per 1M output tokens", "usd_per_1m_output_tokens", "usd"),
        Column("USD per 1M tokens", "usd_per_1m_tokens", "usd"),
        *(Column(name.replace("_", " "), f"{name}_s", "seconds") for name in names),
        Column("load of capacity", "load_factor", "percent"),
        Column("step times", "provenance", "text"),
    )
    rows = tuple(_alternative(one) for one in report.recommendations)
    order = "cheapest first"
    if any(one.measure_first for one in report.recommendations):
        order += ", those whose step times must be measured first after all others"
    table = Table(f"Candidates that meet every objective, {order}", columns, rows)
    text = (
        f"Cost per hour of each candidate that meets every objective, {order}; the label is its number of GPUs. "
        "The whiskers span what the error of step times and KV cache leaves open."
    )
    return Chart("alternatives", "Cost of the alternatives", text, figures.alternatives(report.recommendations), table)


def _alternative(one: Recommendation) -> tuple[Cell, ...]:
    usd = (end.usd_per_hour if end else None for end in one.ends)
    costs = (one.usd_per_hour, *usd, one.usd_per_month, one.usd_per_1m_output_tokens, one.usd_per_1m_tokens)
    values = tuple(outcome.value_s for outcome in one.objectives)
    return (
        one.rank,
        one.gpu,
        one.tp,
        one.replicas,
        *(() if one.pools is None else (one.pools.prefill.replicas, one.pools.decode.replicas)),
        one.gpus,
        *(end.gpus if end else None for end in one.ends),
        one.price.paid_gpus if one.price else None,
        *costs,
        *values,
        one.load_factor,
        f"{one.step_time.provenance}{', measure first' * one.measure_first}",
    )


def measure_first(report: PlanReport) -> list[str]:
    """Why candidates have no range, one sentence each."""
    unsure = [one for one in report.recommendations if one.measure_first]
    return [f"{label_of(one)}: {one.certainty.sentence}" for one in unsure if one.certainty is not None]


def infeasible(report: PlanReport) -> Table:
    """Candidates that are no answer, each with its reason."""
    columns = (Column("GPU type", "gpu", "name"), Column("TP", "tp"), Column("reason", "reason", "text"))
    rows = tuple((one.gpu, one.tp, one.reason) for one in report.infeasible)
    return Table("Candidates that are no answer, and why", columns, rows)


def objectives(outcomes: Sequence[ObjectiveOutcome]) -> Table:
    """The SLO table of one deployment."""
    columns = (
        Column("objective", "objective", "name"),
        Column("limit", "threshold_s", "seconds"),
        Column("value", "value_s", "seconds"),
        Column("met", "met", "yes_no"),
        Column("margin", "margin", "percent"),
        Column("requests within the limit", "attained", "share"),
    )
    rows = tuple(
        (one.name.replace("_", " "), one.threshold_s, one.value_s, one.met, one.margin, one.attained)
        for one in outcomes
    )
    return Table("Objectives: limit and simulated value", columns, rows)


def latency(metrics: Metrics) -> Chart:
    """All latency metrics of one deployment."""
    stats = ("mean", "p50", "p90", "p95", "p99", "max")
    columns = (
        Column("metric", "metric", "text"),
        *(Column(name, f"{name}_s", "seconds") for name in stats),
        Column("samples", "n"),
    )
    rows: list[tuple[Cell, ...]] = []
    for key, title in METRIC_NAMES.items():
        one = getattr(metrics, key)
        rows.append((title, *(getattr(one, name) for name in stats), one.n))
    table = Table("Latency in the replay", columns, tuple(rows))
    return Chart(
        "latency", "Latency percentiles", "Percentiles of each latency metric.", figures.latency(metrics), table
    )


def operating(run: Operating) -> Table:
    """Load, counts and use of one deployment."""
    rows: list[tuple[Cell, Cell]] = [
        ("requests offered", run.requests),
        ("requests finished", run.finished),
        *((("requests cancelled by their clients", run.cancelled),) if run.cancelled else ()),
        *((f"requests rejected: {reason.replace('_', ' ')}", n) for reason, n in run.rejected.items()),
        ("offered load, requests/s", run.offered_rps),
        *_scored(run),
        ("sustainable load, requests/s", run.sustainable_rps),
        ("load factor (1 = capacity)", run.load_factor),
        ("headroom to capacity", None if run.headroom is None else f"{run.headroom * 100:.3g} %"),
        ("saturated", run.saturated),
        ("preemptions", run.preemptions),
        ("mean batch (running requests per replica while busy)", run.batch_mean),
        ("prefix cache hit rate", "no cache acted" if run.prefix_hit_rate is None else f"{run.prefix_hit_rate:.1%}"),
        ("KV cache in use, mean", f"{run.kv_usage_mean * 100:.3g} %"),
        ("KV cache in use, most", f"{run.kv_usage_max * 100:.3g} %"),
        ("time busy", f"{run.busy_fraction * 100:.3g} %"),
        ("output tokens/s", run.output_tokens_per_s),
        ("prompt tokens", run.prompt_tokens),
        ("output tokens", run.output_tokens),
        ("engine steps", run.steps),
        ("engine loop", run.loop),
        ("first arrival to last token, s", run.duration_s),
    ]
    return Table("Load, counts and use", (Column("figure", "figure", "text"), Column("value", "value")), tuple(rows))


def _scored(run: Operating) -> list[tuple[Cell, Cell]]:
    """What was trimmed, and goodput, where there is either."""
    rows: list[tuple[Cell, Cell]] = []
    if run.scored is not None:
        rows.append(("requests scored (warm-up and cool-down trimmed)", run.scored))
    if run.goodput is not None:
        limits = " and ".join(name.replace("_", " ") for name in run.goodput.objectives)
        share = "" if run.goodput.share is None else f" ({run.goodput.share:.2%})"
        rows.append((f"requests within every limit: {limits}", f"{run.goodput.good:,}{share}"))
        rows.append(("goodput: those per second", run.goodput.requests_per_s))
    return rows


def workload(load: WorkloadInfo) -> Chart:
    """Offered load over time."""
    series = load.series
    columns = (
        Column("from", "start_s", "duration"),
        Column("requests", "requests"),
        Column("requests/s", "requests_per_s"),
        Column("prompt tokens/s", "prompt_tokens_per_s"),
        Column("output tokens/s", "output_tokens_per_s"),
    )
    rows = tuple(
        (start, requests, requests / series.bin_s, prompt / series.bin_s, output / series.bin_s)
        for start, requests, prompt, output in zip(
            series.start_s, series.requests, series.prompt_tokens, series.output_tokens, strict=True
        )
    )
    table = Table(f"Offered load in bins of {series.bin_s:g} s", columns, rows)
    text = "Requests and tokens that arrive per second over the window."
    return Chart("workload", "Offered load over time", text, figures.workload(series), table)


def lengths(load: WorkloadInfo) -> Table:
    """Token lengths of prompts and outputs."""
    names = ("mean", "p50", "p90", "p99", "max")
    columns = (Column("tokens per request", "length", "text"), *(Column(name, f"{name}_tokens") for name in names))
    known = (("prompt", load.prompt_length), ("output", load.output_length))
    rows = tuple((title, *(getattr(one, name) for name in names)) for title, one in known if one is not None)
    return Table("Lengths of prompts and outputs", columns, rows)


def facts(load: WorkloadInfo) -> Table:
    """Rates and counts of the workload."""
    rows: list[tuple[Cell, Cell]] = [
        ("requests", load.requests),
        *((f"left out: {reason.replace('_', ' ')}", n) for reason, n in load.excluded.items()),
        ("mean requests/s", load.mean_rps),
        ("peak requests/s over 1 s", load.peak_rps_1s),
        ("peak requests/s over 1 min", load.peak_rps_1min),
        ("burstiness (variance / mean of requests per second; 1 = Poisson)", load.burstiness),
        ("prompt tokens", load.prompt_tokens),
        ("output tokens", load.output_tokens),
    ]
    return Table("Workload", (Column("figure", "figure", "text"), Column("value", "value")), tuple(rows))


def capacity(curve: Sequence[CurvePoint], chart_id: str, where: str) -> Chart:
    """Every replica count that was replayed for one candidate."""
    names = [outcome.name for outcome in curve[0].objectives] if curve else []
    apart = any(point.prefill_replicas is not None for point in curve)
    columns = (
        Column("replicas", "replicas"),
        *((Column("prefill", "prefill_replicas"), Column("decode", "decode_replicas")) if apart else ()),
        Column("GPUs", "gpus"),
        Column("all met", "passed", "yes_no"),
        Column("saturated", "saturated", "yes_no"),
        Column("load", "load_factor", "percent"),
        *(Column(name.replace("_", " "), f"{name}_s", "seconds") for name in names),
        Column("preemptions", "preemptions"),
        Column("rejected", "rejected_requests"),
        Column("USD/hour", "usd_per_hour", "usd"),
    )
    rows: list[tuple[Cell, ...]] = []
    for point in curve:
        values = [outcome.value_s for outcome in point.objectives]
        split = (point.prefill_replicas, point.decode_replicas) if apart else ()
        head = (point.replicas, *split, point.gpus, point.passed, point.saturated, point.load_factor)
        rows.append((*head, *values, point.preemptions, sum(point.rejected.values()), point.usd_per_hour))
    text = (
        "Each objective's value divided by its limit, for each number of replicas that was replayed. "
        "Below the line at 1 the objective is met. Crosses mark replica counts that fail, dots those that pass."
    )
    table = Table(f"Replica counts that were replayed, {where}", columns, tuple(rows))
    return Chart(chart_id, f"Capacity curve, {where}", text, figures.capacity(curve) if curve else None, table)


def memory(stacks: Sequence[tuple[str, MemoryBreakdown]]) -> Chart:
    """What each GiB of a GPU is used for."""
    names = list(dict.fromkeys(part.name for _, stack in stacks for part in stack.parts))
    columns = (
        Column("deployment", "deployment", "name"),
        *(Column(name, f"{name.replace(' ', '_')}_gib", "gib") for name in names),
        Column("total", "total_gib", "gib"),
        Column("KV blocks", "kv_blocks"),
        Column("KV tokens", "kv_tokens"),
        Column("largest requests at once", "max_concurrency"),
    )
    rows: list[tuple[Cell, ...]] = []
    for title, stack in stacks:
        gib = {part.name: part.gib for part in stack.parts}
        tail = (stack.total_gib, stack.kv_blocks, stack.kv_tokens, stack.max_concurrency)
        rows.append((title, *(gib.get(name) for name in names), *tail))
    text = "What the memory of one GPU is used for; the parts add up to what the runtime reports."
    figure = figures.memory(stacks) if stacks else None
    return Chart("memory", "Memory of one GPU", text, figure, Table("GiB per GPU", columns, tuple(rows)))


def costs(rows: Sequence[tuple[str, Cost]]) -> Table:
    """The price behind each cost: provider, region, term, date."""
    columns = (
        Column("deployment", "deployment", "name"),
        Column("USD/hour", "usd_per_hour", "usd"),
        Column("USD/month (730 h)", "usd_per_month", "usd"),
        Column("USD per GPU-hour", "usd_per_gpu_hour", "usd"),
        Column("provider", "provider", "name"),
        Column("region", "region", "text"),
        Column("term", "term", "name"),
        Column("as of", "date", "text"),
        Column("sold as", "sold_as", "text"),
    )
    out: list[tuple[Cell, ...]] = []
    for title, cost in rows:
        price = cost.price
        if price is None:
            out.append((title, *(None,) * 8))
            continue
        sold = (
            f"{price.instances} x {price.instance_type}".strip() if price.instance_type else f"{price.paid_gpus} GPUs"
        )
        where = (price.provider, price.region, price.term, price.date, sold)
        out.append((title, cost.usd_per_hour, cost.usd_per_month, price.usd_per_gpu_hour, *where))
    return Table("The price behind each figure", columns, tuple(out))


def price_sources(rows: Sequence[tuple[str, Cost]]) -> list[str]:
    """Where each price was read, or why there is none, per hour or per token, in sentences; equal ones once."""
    by_text: dict[str, list[str]] = {}
    for title, cost in rows:
        price = cost.price
        text = f"no price: {cost.price_reason}" if price is None else f"{price.source}. {price.notes}".strip()
        text += f" {cost.per_token_reason}." if cost.per_token_reason else ""
        by_text.setdefault(text, []).append(title)
    return [f"{', '.join(titles)}: {text}" for text, titles in by_text.items()]


def stacks(report: PlanReport | ReplayReport) -> list[tuple[str, MemoryBreakdown]]:
    """The memory of each deployment, of those that are no answer too where it was sized."""
    if isinstance(report, ReplayReport):
        return _stacks_of(report)
    feasible = [stack for one in report.recommendations for stack in _stacks_of(one)]
    return feasible + [(f"TP{one.tp} {one.gpu}, no answer", one.memory) for one in report.infeasible if one.memory]


def _stacks_of(one: Recommendation | ReplayReport) -> list[tuple[str, MemoryBreakdown]]:
    if one.pools is None:
        return [(label_of(one), one.memory)]
    parts = (("prefill", one.pools.prefill), ("decode", one.pools.decode))
    return [(f"{name} {label(one.gpu, pool.tp, pool.replicas)}", pool.memory) for name, pool in parts]


def priced(report: PlanReport | ReplayReport) -> list[tuple[str, Cost]]:
    """The cost of each deployment."""
    if isinstance(report, ReplayReport):
        return [(label_of(report), report.cost)]
    return [(label_of(one), one) for one in report.recommendations]


def step_times(report: PlanReport | ReplayReport) -> list[StepTimeInfo]:
    """What timed each deployment's steps."""
    deployments = [report] if isinstance(report, ReplayReport) else report.recommendations
    found = []
    for one in deployments:
        pools = one.pools
        found += [one.step_time] if pools is None else [pools.prefill.step_time, pools.decode.step_time]
    return found


def pools(apart: PoolsInfo | None) -> Table | None:
    """Both pools and the transfers between them; ``None`` where every replica does both."""
    if apart is None:
        return None
    both = (apart.prefill, apart.decode)
    wait, binds = apart.kv_transfer_s, apart.binding
    rows: list[tuple[Cell, ...]] = [
        ("replicas", *(pool.replicas for pool in both)),
        ("TP", *(pool.tp for pool in both)),
        ("GPUs", *(pool.gpus for pool in both)),
        ("load factor (1 = capacity)", *(pool.load_factor for pool in both)),
        ("sustainable load, requests/s", *(pool.sustainable_rps for pool in both)),
        ("time busy", *(f"{pool.busy_fraction * 100:.3g} %" for pool in both)),
        ("mean batch (running requests per replica while busy)", *(pool.batch_mean for pool in both)),
        ("KV cache in use, mean", *(f"{pool.kv_usage_mean * 100:.3g} %" for pool in both)),
        ("KV cache in use, most", *(f"{pool.kv_usage_max * 100:.3g} %" for pool in both)),
        ("preemptions", *(pool.preemptions for pool in both)),
        ("engine steps", *(pool.steps for pool in both)),
        ("KV transfer with its wait, p50, s", None, wait.p50),
        ("KV transfer with its wait, p99, s", None, wait.p99),
        ("KV transfer with its wait, most, s", None, wait.max),
        ("links are full at, requests/s", None, apart.transfer_rps),
        ("gives the first token", *("yes" if apart.first_token_from == name else "" for name in ("prefill", "decode"))),
        ("fills up first", *("yes" if binds == name else "" for name in ("prefill", "decode"))),
    ]
    if binds == "transfer":
        rows[-1] = ("fills up first", "the links between the pools", None)
    columns = (Column("figure", "figure", "text"), Column("prefill pool", "prefill"), Column("decode pool", "decode"))
    return Table("Prefill and decode pools", columns, tuple(rows))
