"""Report documents made for tests of what renders them. The figures are invented and internally consistent."""

from __future__ import annotations

import math
from typing import Any

OBJECTIVES = (("ttft_p99", "ttft", 99.0, 2.0), ("itl_p99", "itl", 99.0, 0.1))


def stats(scale: float) -> dict[str, Any]:
    return {
        "n": 1000,
        "mean": scale,
        "p50": scale * 0.9,
        "p90": scale * 1.5,
        "p95": scale * 1.8,
        "p99": scale * 2.2,
        "max": scale * 4,
    }


def outcomes(ttft: float, itl: float) -> list[dict[str, Any]]:
    rows = []
    for (name, metric, percentile, limit), value in zip(OBJECTIVES, (ttft, itl), strict=True):
        row = {"name": name, "metric": metric, "percentile": percentile, "threshold_s": limit, "value_s": value}
        rows.append(row | {"met": value <= limit, "margin": 1 - value / limit})
    return rows


def point(replicas: int, tp: int = 1, price: float | None = 2.5) -> dict[str, Any]:
    load = 2.4 / replicas
    ttft = 0.3 * replicas**-0.5 if load < 1 else 40.0 * load
    itl = 0.02 + 0.05 * load
    return {
        "replicas": replicas,
        "gpus": replicas * tp,
        "load_factor": load,
        "saturated": load > 1,
        "passed": load <= 1 and ttft <= 2 and itl <= 0.1,
        "objectives": outcomes(ttft, itl),
        "preemptions": 3 if load > 1 else 0,
        "rejected": {},
        "usd_per_hour": None if price is None else price * replicas * tp,
    }


def memory(total: float = 79.19) -> dict[str, Any]:
    parts = [("weights", 14.99), ("KV cache", 53.0), ("activations", 2.1), ("non-torch", 0.4), ("CUDA graphs", 0.8)]
    parts.append(("unused", total - sum(gib for _, gib in parts)))
    return {
        "parts": [{"name": name, "gib": gib} for name, gib in parts],
        "total_gib": total,
        "kv_blocks": 27136,
        "kv_tokens": 434176,
        "kv_bytes_per_token": 131072.0,
        "block_size": 16,
        "max_concurrency": 3.31,
        "notes": ["CUDA graphs are estimated"],
    }


def operating(ttft: float = 0.2, itl: float = 0.06, load: float = 0.8) -> dict[str, Any]:
    return {
        "metrics": {
            "ttft_s": stats(ttft / 2.2),
            "ttft_from_admission_s": stats(ttft / 3),
            "itl_s": stats(itl / 2.2),
            "tpot_s": stats(itl / 2),
            "e2e_s": stats(5.0),
            "queue_s": stats(0.004),
        },
        "objectives": outcomes(ttft, itl),
        "load_factor": load,
        "headroom": 1 / load - 1,
        "offered_rps": 5.6,
        "sustainable_rps": 5.6 / load,
        "saturated": load > 1,
        "requests": 20000,
        "finished": 19999,
        "rejected": {"too_long_for_model": 1},
        "preemptions": 12,
        "kv_usage_mean": 0.31,
        "kv_usage_max": 0.92,
        "batch_mean": 42.5,
        "busy_fraction": 0.97,
        "steps": 123456,
        "duration_s": 3612.5,
        "prompt_tokens": 22_000_000,
        "output_tokens": 4_100_000,
        "output_tokens_per_s": 1134.9,
        "loop": "general",
        "notes": ["one note of the run"],
    }


def cost(per_gpu: float | None, gpus: int) -> dict[str, Any]:
    if per_gpu is None:
        nothing: dict[str, Any] = dict.fromkeys(
            ("usd_per_hour", "usd_per_month", "usd_per_1m_output_tokens", "usd_per_1m_tokens", "price")
        )
        return nothing | {"price_reason": "no offer in the catalogue for this GPU type; give your own price"}
    hour = per_gpu * gpus
    price = {
        "price_id": "aws-p5-us-east-1",
        "provider": "AWS",
        "region": "us-east-1",
        "term": "on_demand",
        "date": "2026-07-20",
        "instance_type": "p5.48xlarge",
        "gpus_per_instance": 1,
        "instances": gpus,
        "paid_gpus": gpus,
        "usd_per_instance_hour": per_gpu,
        "usd_per_gpu_hour": per_gpu,
        "source": "price table of the provider",
        "notes": "",
    }
    return {
        "usd_per_hour": hour,
        "usd_per_month": hour * 730,
        "usd_per_1m_output_tokens": hour / 4.1,
        "usd_per_1m_tokens": hour / 26.1,
        "per_token_reason": None,
        "price": price,
        "price_reason": None,
    }


ENGINE = {
    "preset": "vllm-0.33",
    "version": "0.33.0",
    "settings": {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "async_scheduling": True, "long_prefill": None},
    "router": "round_robin",
    "weight_dtype": "bf16",
    "kv_dtype": "bf16",
}
GOODPUT = {"objectives": ["ttft_p99"], "good": 18765, "scored": 19000, "share": 0.98763, "requests_per_s": 5.21}
STEP_TIME = {
    "calibration_id": "analytic-H100-SXM-1",
    "provenance": "analytic",
    "stated_error": "not measured",
    "notes": ["roofline of the data sheet"],
}


def certainty(tp: int, replicas: int, per_gpu: float | None) -> dict[str, Any]:
    """One replica fewer to two more."""

    def end(count: int) -> dict[str, Any]:
        return {"replicas": count, "gpus": tp * count, "usd_per_hour": per_gpu and per_gpu * tp * count}

    return {
        "how_sure": "Analytic: the step times are estimated from the GPU's data sheet, not measured.",
        "step_time_error": 0.2,
        "kv_error": 0.012,
        "fewest": end(replicas - 1),
        "most": end(replicas + 2),
        "replays": 5,
        "sentence": f"With steps 20 % longer it fails at {replicas} replicas: ttft_p99 is 2.4 s against 2 s.",
    }


def recommendation(rank: int, gpu: str, tp: int, replicas: int, per_gpu: float | None) -> dict[str, Any]:
    curve = [point(n, tp, per_gpu) for n in range(1, replicas + 2)]
    evidence = {
        "passes": curve[replicas - 1],
        "fails": curve[replicas - 2] if replicas > 1 else None,
        "one_more": curve[replicas],
        "monotone": True,
        "lower_bound_replicas": 2,
        "replays": len(curve),
        "sentence": f"{replicas} replicas meet every objective and {replicas - 1} do not.",
    }
    where = {"rank": rank, "status": "feasible", "gpu": gpu, "tp": tp, "replicas": replicas, "gpus": tp * replicas}
    parts = {"memory": memory(), "engine": ENGINE, "step_time": STEP_TIME, "curve": curve, "evidence": evidence}
    parts |= {"certainty": certainty(tp, replicas, per_gpu), "may_be_cheapest": None if rank == 1 else rank == 2}
    return where | operating() | cost(per_gpu, tp * replicas) | parts


def workload(name: str) -> dict[str, Any]:
    bins = 60
    requests = [int(300 + 120 * math.sin(i / 9) + (200 if i == 41 else 0)) for i in range(bins)]
    return {
        "requests": sum(requests),
        "span_s": 3600.0,
        "mean_rps": sum(requests) / 3600,
        "peak_rps_1s": 31.0,
        "peak_rps_1min": 10.4,
        "burstiness": 2.7,
        "prompt_tokens": 22_000_000,
        "output_tokens": 4_100_000,
        "prompt_length": {"mean": 1154.6, "p50": 1020.0, "p90": 2400.0, "p99": 7400.0, "max": 14050},
        "output_length": {"mean": 211.1, "p50": 129.0, "p90": 480.0, "p99": 700.0, "max": 1000},
        "excluded": {"no_output_tokens": 7},
        "notes": ["arrivals are replayed as they were sent"],
        "series": {
            "bin_s": 60.0,
            "start_s": [60.0 * i for i in range(bins)],
            "requests": requests,
            "prompt_tokens": [1155 * n for n in requests],
            "output_tokens": [211 * n for n in requests],
        },
        "trace_name": name,
        "transform": {"window_start_s": None, "window_end_s": None, "growth": 1.5},
        "ingest": {
            "format": "azure-llm",
            "assumed": ["times without a zone are UTC"],
            "rows_read": 20007,
            "cleaning": {"rows_kept": 20000},
        },
    }


def _common(name: str) -> dict[str, Any]:
    return {
        "schema": "capreplay.report/1",
        "name": name,
        "model": "meta-llama/Llama-3.1-8B",
        "workload": workload("chat-hour.csv"),
        "provenance": {
            "trace_sha256": "ab" * 32,
            "catalogue_version": "2026.11",
            "kernel_version": "kernel-1",
            "engine_preset": "vllm-0.33",
            "engine_version": "0.33.0",
            "seed": 7,
            "input_hash": "cd" * 32,
            "calibrations": [
                {"gpu": "H100-SXM", **{k: STEP_TIME[k] for k in ("calibration_id", "provenance", "stated_error")}}
            ],
        },
        "method": ["Every figure comes from replaying the trace's own arrivals."],
        "limits": ["Prefix caching is off in this version."],
        "warnings": ["Step times are analytic: no run on this GPU was measured."],
    }


def without_range(one: dict[str, Any]) -> dict[str, Any]:
    """The same recommendation where nothing bounds how far its step times are off."""
    why = "No range: a step may be off by 297 %, which bounds no count."
    sure = one["certainty"] | {"fewest": None, "most": None, "step_time_error": 2.97, "sentence": why}
    return one | {"certainty": sure, "may_be_cheapest": None, "measure_first": True}


def plan_document(name: str = "chat, next year") -> dict[str, Any]:
    best = recommendation(1, "H100-SXM", 1, 4, 2.5)
    second = recommendation(2, "A100-SXM-80GB", 2, 5, 1.9)
    third = recommendation(3, "L40S", 1, 6, None)
    no_room = {"gpu": "T4", "tp": 1, "code": "memory", "best": None, "curve": [], "memory": None}
    no_split = {
        "gpu": "A10G",
        "tp": 3,
        "code": "parallelism",
        "best": point(2),
        "curve": [point(2)],
        "memory": memory(),
    }
    infeasible = [
        no_room | {"reason": "The weights need 15.0 GiB and the GPU has 14.6 GiB."},
        no_split | {"reason": "32 attention heads cannot be split over 3 GPUs."},
    ]
    return _common(name) | {
        "kind": "plan",
        "verdict": {"status": "recommended", "sentence": "4 x H100-SXM meet every objective for 10.00 USD per hour."},
        "objectives": ["ttft_p99 <= 2 s", "itl_p99 <= 0.1 s"],
        "constraints": {"max_gpus": 64, "max_usd_per_hour": None},
        "recommendations": [best, second, third],
        "infeasible": infeasible,
    }


def empty_plan_document() -> dict[str, Any]:
    """A plan in which nothing is feasible."""
    document = plan_document("nothing works")
    verdict = {"status": "no_feasible_candidate", "sentence": "No candidate meets every objective."}
    return document | {"recommendations": [], "verdict": verdict}


def timeline(bins: int = 12, *, cache: bool = False) -> dict[str, Any]:
    """A wave of load over ``bins`` minutes; no request arrives in the last one."""
    wave = [1 + math.sin(i / 3) for i in range(bins)]
    counts = [round(100 * level) for level in wave[:-1]] + [0]
    ttft = [0.1 * level for level in wave[:-1]] + [None]
    columns: dict[str, Any] = dict.fromkeys(("arrived", "admitted", "finished"), counts)
    for name in ("running", "waiting", "prompt_tokens_per_s", "output_tokens_per_s", "finished_per_s", "preemptions"):
        columns[name] = [37.5 * level for level in wave]
    return columns | {
        "bin_s": 60.0,
        "start_s": [60.0 * i for i in range(bins)],
        "batch_utilisation": [0.4 * level for level in wave],
        "ttft_p50_s": ttft,
        "ttft_p99_s": [None if value is None else 3 * value for value in ttft],
        "prefix_hit_rate": [0.25] * (bins - 1) + [None] if cache else None,
        "kv_usage": None if cache else [0.3 * level for level in wave],
        "notes": ["Derived from each request's own times."],
    }


def splits() -> list[dict[str, Any]]:
    """Two tenants, one of which tries to be HTML and a formula, and the others in one row."""
    names = (("=chat<b>", 1, 9000), ("code", 1, 8000), ("(7 others)", 7, 3000))
    rows = []
    for name, members, requests in names:
        row: dict[str, Any] = {"name": name, "members": members, "requests": requests, "finished": requests - 1}
        row |= {"prompt_tokens": requests * 1000, "output_tokens": requests * 200, "preemptions": 4}
        for metric in ("ttft", "tpot", "e2e", "queue"):
            row |= {f"{metric}_p50_s": 0.011, f"{metric}_p99_s": 0.022}
        rows.append(row | {"good_share": 0.98765, "goodput_rps": 2.25})
    return [{"by": "tenant", "rows": rows}]


def replay_document(name: str = "", load: float = 0.8) -> dict[str, Any]:
    status = "saturated" if load > 1 else "served"
    reason = "No cost per token: the deployment cannot keep up" if load > 1 else None
    return _common(name) | {
        "kind": "replay",
        "verdict": {"status": status, "sentence": "4 x H100-SXM finish 19,999 of 20,000 requests."},
        "gpu": "H100-SXM",
        "tp": 1,
        "replicas": 4,
        "gpus": 4,
        "operating": operating(load=load) | {"objectives": outcomes(0.2, 0.06), "scored": 19000, "goodput": GOODPUT},
        "objectives": ["ttft_p99 <= 2 s", "itl_p99 <= 100 ms"],
        "timeline": timeline(),
        "splits": splits(),
        "cost": cost(2.5, 4) | {"per_token_reason": reason},
        "memory": memory(),
        "engine": ENGINE,
        "step_time": STEP_TIME,
    }


def burst_document() -> dict[str, Any]:
    """A replay of requests that come as one burst: no offered rate, so no load factor."""
    document = replay_document("burst")
    document["operating"] |= {"load_factor": None, "headroom": None, "offered_rps": None}
    document["cost"] |= {
        "usd_per_1m_output_tokens": None,
        "usd_per_1m_tokens": None,
        "per_token_reason": "No cost per token: the requests come as one burst",
    }
    return document


def burst_plan_document() -> dict[str, Any]:
    """A plan of such a burst."""
    document = plan_document("burst")
    for found in document["recommendations"]:
        found |= {"load_factor": None, "headroom": None, "offered_rps": None, "usd_per_1m_output_tokens": None}
        found |= {"usd_per_1m_tokens": None, "per_token_reason": "No cost per token: the requests come as one burst"}
        for one in found["curve"]:
            one |= {"load_factor": None, "saturated": False}
    return document
