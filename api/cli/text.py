"""Reports as plain text: the verdict first, then a table, what does not work and why, the price, the warnings."""

from __future__ import annotations

from typing import Any

from api.cli.output import table
from api.reports.formats import duration, seconds, usd
from replay.planning.parts import Certainty

Document = dict[str, Any]
_POOLS = ("prefill", "decode")


def plan_text(document: Document) -> str:
    """A plan's report document as text for a terminal."""
    parts = [
        document["verdict"]["sentence"],
        "",
        _workload_line(document),
        f"Objectives: {'; '.join(document['objectives'])}",
        _engine_line(document, [one["engine"] for one in document["recommendations"]]),
    ]
    if document["recommendations"]:
        best = document["recommendations"][0]
        where = f"{best['gpu']} at TP {best['tp']}"
        parts += ["", _recommendation_table(document)]
        parts.append("load: share of the capacity limit, not of the latency limit")
        parts += ["", f"Evidence for {where}: {best['evidence']['sentence']}"]
        if best.get("certainty") is not None:
            parts.append(f"How sure: {best['certainty']['how_sure']} {best['certainty']['sentence']}")
        parts += _measure_first_lines(document["recommendations"])
        if best.get("pools") is not None:
            parts += ["", "First row:", *_pool_lines(best["pools"])]
        if best.get("goodput") is not None:
            parts += ["", f"First row: {goodput_sentence(best['goodput'])}"]
    if document["infeasible"]:
        rows = [(one["gpu"], str(one["tp"]), one["reason"]) for one in document["infeasible"]]
        parts += ["", "No answer:", table(("GPU", "TP", "reason"), rows, left=(0, 2), wrap=100)]
    prices = dict.fromkeys(price_sentence(one) for one in document["recommendations"])
    parts += ["", *prices] if prices else []
    parts += _trust_lines(document, [one["step_time"] for one in document["recommendations"]])
    return "\n".join(parts + _notes(document["recommendations"]) + _warnings(document))


def replay_text(document: Document, kernel_s: float, wall_s: float) -> str:
    """A replay's report document as text for a terminal."""
    run = document["operating"]
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    rows = [
        (key.removesuffix("_s").replace("_", " "), *(seconds(stats[name]) for name in names), f"{stats['n']:,}")
        for key, stats in run["metrics"].items()
    ]
    rejected = ", ".join(f"{n:,} {reason}" for reason, n in run["rejected"].items()) or "none"
    cancelled = f", {run['cancelled']:,} cancelled by their clients" if run.get("cancelled") else ""
    load = run["load_factor"]
    share = "No offered rate" if load is None else f"Load factor {load:.3g} (1 = capacity)"
    facts = (
        f"{share}, sustainable {run['sustainable_rps']:.3g} requests/s; "
        f"KV use mean {run['kv_usage_mean']:.0%}, max {run['kv_usage_max']:.0%}; mean batch {run['batch_mean']:.1f}; "
        f"busy {run['busy_fraction']:.0%}."
    )
    counts = (
        f"{run['requests']:,} requests: {run['finished']:,} finished{cancelled}, rejected: {rejected}; "
        f"{run['preemptions']:,} preemptions; {run['steps']:,} engine steps ({run['loop']} loop)."
    )
    parts = [document["verdict"]["sentence"], "", _workload_line(document)]
    parts += [_engine_line(document, [document["engine"]]), counts, facts]
    if run["saturated"]:
        parts.append("SATURATED: these latencies grow with the length of the trace and are no operating point.")
    parts += ["", table(("latency", *names, "samples"), rows)]
    if document.get("pools") is not None:
        parts += ["", *_pool_lines(document["pools"])]
    if run["objectives"]:
        parts += ["", _objective_table(run["objectives"])]
    if run.get("goodput") is not None:
        parts += ["", goodput_sentence(run["goodput"])]
    for split in document.get("splits", ()):
        parts += ["", _split_table(split)]
    parts += ["", _replay_price(document)]
    parts += _trust_lines(document, [document["step_time"]])
    parts.append(f"Simulated in {kernel_s:.3g} s of compiled code, {wall_s:.3g} s in all.")
    return "\n".join(parts + _notes([document]) + _warnings(document))


def price_sentence(cost: Document) -> str:
    """Provider, region, term and date of the price behind a cost; or why there is none."""
    price = cost["price"]
    if price is None:
        return f"Price: none: {cost['price_reason']}."
    date = f", as of {price['date']}" if price["date"] else ""
    whole = ""
    if price["gpus_per_instance"] > 1:
        whole = f"; sold in whole instances of {price['gpus_per_instance']} ({price['instance_type']})"
    where = f"{price['provider']}, {price['region']}, {price['term']}{date}"
    gpu = f"{cost['gpu']} at TP {cost['tp']}: " if "gpu" in cost else ""
    no_tokens = f" {cost['per_token_reason']}." if cost["per_token_reason"] else ""
    return f"Price: {gpu}{price['usd_per_gpu_hour']:.4g} USD per GPU-hour ({where}){whole}.{no_tokens}"


def goodput_sentence(goodput: Document) -> str:
    """Requests within all limits that bind single requests, as a share and per second."""
    rate = "" if goodput["requests_per_s"] is None else f", {goodput['requests_per_s']:.4g} requests/s"
    limits = " and ".join(goodput["objectives"])
    return f"Goodput ({limits}): {goodput['good']:,} of {goodput['scored']:,} requests{rate}."


def _objective_table(objectives: list[Document]) -> str:
    rows = [
        (
            one["name"].replace("_", " "),
            seconds(one["threshold_s"]),
            seconds(one["value_s"]),
            "yes" if one["met"] else "no",
            "-" if one.get("attained") is None else f"{one['attained']:.2%}",
        )
        for one in objectives
    ]
    return table(("objective", "limit", "value", "met", "requests within"), rows)


def _pool_lines(pools: Document) -> list[str]:
    """Both pools, the links between them, and which part fills up first."""
    rows = []
    for name in _POOLS:
        pool = pools[name]
        rows.append(
            (
                name,
                str(pool["replicas"]),
                str(pool["tp"]),
                "-" if pool["load_factor"] is None else f"{pool['load_factor']:.0%}",
                "-" if pool["sustainable_rps"] is None else f"{pool['sustainable_rps']:.3g}",
                f"{pool['busy_fraction']:.0%}",
                f"{pool['batch_mean']:.1f}",
                f"{pool['kv_usage_mean']:.0%}",
                f"{pool['kv_usage_max']:.0%}",
                f"{pool['preemptions']:,}",
            )
        )
    head = ("pool", "replicas", "TP", "load", "sustainable/s", "busy", "batch", "KV mean", "KV max", "preemptions")
    wait = pools["kv_transfer_s"]
    links = "" if pools["transfer_rps"] is None else f"; links are full at {pools['transfer_rps']:.3g} requests/s"
    binds = {"prefill": "the prefill pool", "decode": "the decode pool", "transfer": "the links between the pools"}
    return [
        table(head, rows),
        f"KV transfer, waiting included: p50 {seconds(wait['p50'])}, p99 {seconds(wait['p99'])}, "
        f"most {seconds(wait['max'])} over {wait['n']:,} requests{links}. First token from the "
        f"{pools['first_token_from']} side. What fills up first: {binds[pools['binding']]}.",
    ]


def _split_table(split: Document) -> str:
    rows = [
        (
            one["name"],
            f"{one['requests']:,}",
            f"{one['output_tokens']:,}",
            seconds(one["ttft_p50_s"]),
            seconds(one["ttft_p99_s"]),
            seconds(one["tpot_p99_s"]),
            seconds(one["e2e_p99_s"]),
            "-" if one["good_share"] is None else f"{one['good_share']:.1%}",
        )
        for one in split["rows"]
    ]
    head = (split["by"], "requests", "output tokens", "ttft p50", "ttft p99", "tpot p99", "e2e p99", "good")
    return table(head, rows)


def _replay_price(document: Document) -> str:
    sentence = price_sentence(document["cost"] | {"gpu": document["gpu"], "tp": document["tp"]})
    per_hour = document["cost"]["usd_per_hour"]
    return sentence if per_hour is None else f"{sentence} In all {usd(per_hour)} USD per hour."


def _engine_line(document: Document, engines: list[Document]) -> str:
    """What was replayed: model, engine preset, number formats. No engine: no candidate came so far."""
    line = f"Model: {document['model']}; engine: {document['provenance']['engine_preset']}"
    formats = dict.fromkeys(f"weights {one['weight_dtype']}, KV cache {one['kv_dtype']}" for one in engines)
    return f"{line}; {' or '.join(formats)}." if formats else f"{line}."


def _notes(deployments: list[Document]) -> list[str]:
    """Notes on memory, context and the run, each once with the GPU types that it is about."""
    about: dict[str, list[str]] = {}
    for one in deployments:
        for note in (*one["memory"]["notes"], *one.get("operating", one)["notes"]):
            about.setdefault(note, []).append(f"{one['gpu']} at TP {one['tp']}")
    return ["", *(f"Note on {', '.join(where)}: {note}" for note, where in about.items())] if about else []


def _recommendation_table(document: Document) -> str:
    recommended = document["recommendations"]
    apart = any(one.get("pools") for one in recommended)
    head = ["", "GPU", "TP", "prefill + decode" if apart else "replicas", "GPUs"]
    first = recommended[0]
    paid = [one["price"] and one["price"]["paid_gpus"] for one in recommended]
    is_more_paid = any(n and n != one["gpus"] for n, one in zip(paid, recommended, strict=True))
    sure = [one.get("certainty") and Certainty.model_validate(one["certainty"]) for one in recommended]
    unsure = [one.get("measure_first", False) for one in recommended]  # absent from reports of earlier versions
    has_range = any(unsure) or any(found.fewest != found.most for found in sure if found)
    head += ["paid GPUs"] * is_more_paid + ["USD/hour"] + ["within the error"] * has_range
    head += ["USD/month", "USD/1M output"]
    head += [one["name"].replace("_", " ") for one in first["objectives"]] + ["load"]
    rows = []
    for one, bought, found, is_unsure in zip(recommended, paid, sure, unsure, strict=True):
        gpus = found.gpus_text(one["gpus"]) if found else str(one["gpus"])
        cells = [str(one["rank"]), one["gpu"], str(one["tp"]), _replicas(one), gpus]
        cells += [str(bought or "-")] * is_more_paid
        within = found.usd_text() if found else "-"
        cells += [usd(one["usd_per_hour"])] + ["measure first" if is_unsure else within] * has_range
        cells += [usd(one["usd_per_month"]), usd(one["usd_per_1m_output_tokens"])]
        cells += [seconds(outcome["value_s"]) for outcome in one["objectives"]] + [
            "-" if one["load_factor"] is None else f"{one['load_factor']:.0%}"
        ]
        rows.append(cells)
    return table(head, rows, left=(1,))


def _measure_first_lines(recommended: list[Document]) -> list[str]:
    """Why candidates below the first have no range."""
    return [
        f"Measure {one['gpu']} at TP {one['tp']} before buying it: {one['certainty']['sentence']}"
        for one in recommended[1:]
        if one.get("measure_first")
    ]


def _replicas(one: Document) -> str:
    pools = one.get("pools")
    return str(one["replicas"]) if pools is None else " + ".join(str(pools[name]["replicas"]) for name in _POOLS)


def _workload_line(document: Document) -> str:
    load = document["workload"]
    growth = load["transform"]["growth"]
    grown = f", at {growth:g} times the load" if growth != 1 else ""
    rate = f", {load['mean_rps']:.3g} requests/s on average" if load["mean_rps"] is not None else ""
    excluded = sum(load["excluded"].values())
    left_out = f"; {excluded:,} left out ({', '.join(load['excluded'])})" if excluded else ""
    assumed = ""
    if load["transform"].get("prefix_from_sessions"):  # absent from reports of earlier versions
        assumed = "; each turn of a session is taken to begin with the turn before it"
    line = f"Workload: {load['requests']:,} requests over {duration(load['span_s'])}{rate}{grown}{left_out}{assumed}."
    return "\n".join([line, *(f"  {note}" for note in load["notes"])])


def _trust_lines(document: Document, step_times: list[Document]) -> list[str]:
    by_gpu = dict.fromkeys(
        f"{one['provenance']}: {one['stated_error']} ({one['calibration_id']})" for one in step_times
    )
    return ["", *(f"Step times {line}" for line in by_gpu)] if by_gpu else []


def _warnings(document: Document) -> list[str]:
    return ["", *(f"Warning: {one}" for one in document["warnings"])] if document["warnings"] else []
