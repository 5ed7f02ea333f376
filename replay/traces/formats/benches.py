"""What load generators write about the requests that they sent: vLLM ``bench serve``, GuideLLM, inference-perf.

Sources: the tools' own code (vllm/benchmarks/serve.py, guidellm's request statistics, inference-perf's lifecycle
report). Such files hold what a benchmark sent, not what users did; times are when the client sent each request.
"""

from __future__ import annotations

from typing import Any

from replay.traces.formats.links import scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row, wants
from replay.traces.rows import JSON_CONTAINERS
from replay.traces.source import refusal

NS = 10**9
_MS = 10**6


def _vllm(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    starts, prompts, outputs = record.get("start_times"), record.get("input_lens"), record.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(outputs, list):
        raise refusal(
            "no_requests",
            "the benchmark's result holds sums only, no single requests",
            "no_detail",
            "run the benchmark again with --save-result --save-detailed and upload that file",
        )
    if not isinstance(starts, list):
        raise refusal(
            "no_arrivals",
            "the benchmark's result does not say when each request was sent (start_times)",
            "missing_arrival",
            "run it again with a version of vLLM that writes start_times",
        )
    if reading.state.setdefault("line", line) != line:
        raise refusal(
            "several_runs",
            f"the file holds several benchmark runs, the second at line {line:,}",
            "several_runs",
            "upload one run; they are separate loads",
            line,
        )
    if not len(starts) == len(prompts) == len(outputs):
        raise refusal(
            "json",
            f"start_times, input_lens, output_lens have {len(starts):,}, {len(prompts):,} and {len(outputs):,} entries",
            "malformed_json",
            "they must have one entry a request; write the result again",
        )
    ttfts, errors, gaps = (record.get(name) or [] for name in ("ttfts", "errors", "itls"))
    limit = record.get("max_concurrency")
    if limit is not None:
        reading.ledger.warn(
            "max_concurrency",
            f"the benchmark kept at most {limit} requests in flight: later requests waited for earlier ones, so these "
            "arrivals depend on the server that was measured",
        )
    rows: list[Row] = []
    for index, (start, prompt, output) in enumerate(zip(starts, prompts, outputs, strict=True)):
        failed = bool(errors[index]) if index < len(errors) else False
        ttft = scaled_ns(ttfts[index], NS) if index < len(ttfts) and not failed else None
        row: Row = {
            "arrival": start,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "model": record.get("model_id"),
            "status": "failed" if failed else "ok",
            "source_ttft_ns": ttft,
        }
        if ttft is not None and index < len(gaps) and isinstance(gaps[index], list):
            row["source_e2e_ns"] = ttft + sum(scaled_ns(gap, NS) or 0 for gap in gaps[index])
        rows.append(row)
    return rows


_GUIDELLM_STATUS = {"successful": "ok", "errored": "failed", "incomplete": "aborted", "cancelled": "aborted"}


def _guidellm(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    rows: list[Row] = []
    runs = 0
    for bench in record["benchmarks"]:
        groups = bench.get("requests")
        if not isinstance(groups, dict):
            continue
        found = [(status, one) for status, group in groups.items() for one in group or () if isinstance(one, dict)]
        runs += bool(found)
        made = _requests_made(bench)
        if len(found) < made:
            reading.ledger.warn(
                "sampled",
                f"the report lists {len(found):,} of the {made:,} requests that a benchmark made: the load is "
                "understated by so much; write the report again without sampling its requests",
            )
        rows.extend(_guidellm_row(one, _GUIDELLM_STATUS.get(status, "unknown")) for status, one in found)
    if not rows:
        raise refusal(
            "no_requests",
            "the report's benchmarks hold no single requests",
            "no_detail",
            "write the report as JSON with its requests (not sampled away) and upload that file",
        )
    if runs > 1:
        reading.ledger.warn(
            "several_runs", f"the report holds {runs} benchmarks one after the other; cut one out with a window"
        )
    return rows


def _requests_made(bench: dict[str, Any]) -> int:
    """How many requests a benchmark says it made, by the version's own place for it; 0 where it does not say."""
    places = (bench, bench.get("metrics") or {}, bench.get("run_stats") or {})
    totals = [place.get(name) for place in places for name in ("request_totals", "requests_made")]
    made = [total.get("total") for total in totals if isinstance(total, dict)]
    return max((number for number in made if isinstance(number, int)), default=0)


def _guidellm_row(one: dict[str, Any], status: str) -> Row:
    timings = (one.get("info") or {}).get("timings") or {}
    start = next(
        (t for t in (one.get("request_start_time"), one.get("start_time"), timings.get("request_start")) if t), None
    )
    prompt, output = one.get("prompt_tokens"), one.get("output_tokens")
    if prompt is None:
        prompt = (one.get("input_metrics") or {}).get("text_tokens")
    if output is None:
        output = (one.get("output_metrics") or {}).get("text_tokens")
    return {
        "arrival": start,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "status": status,
        "source_ttft_ns": scaled_ns(one.get("time_to_first_token_ms"), _MS),
        "source_e2e_ns": scaled_ns(one.get("request_latency"), NS),
        "request_id": one.get("request_id"),
    }


def _inference_perf(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    info = record.get("info") or {}
    answer = info.get("response_metrics") or {}
    usage = answer.get("server_usage") or {}
    output = usage.get("completion_tokens", answer.get("output_tokens", info.get("output_tokens")))
    times = answer.get("output_token_times") or info.get("output_token_times") or []
    start, end = scaled_ns(record["start_time"], NS), scaled_ns(record.get("end_time"), NS)
    first = scaled_ns(times[0], NS) if times else None
    return [
        {
            "arrival": record["start_time"],
            "prompt_tokens": usage.get("prompt_tokens", info.get("input_tokens")),
            "output_tokens": output,
            "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            "status": "failed" if record.get("error") else "ok",
            "source_ttft_ns": None if first is None or start is None else first - start,
            "source_e2e_ns": None if end is None or start is None else end - start,
        }
    ]


FORMATS = (
    RecordFormat(
        name="vllm-bench-serve",
        title="vLLM bench serve result",
        needs=("backend", "model_id", "input_lens", "output_lens", "start_times"),
        detector=wants(JSON_CONTAINERS, "backend", "model_id", "num_prompts", "duration", "completed"),
        expand=_vllm,
        columns={
            "arrival": "start_times",
            "prompt_tokens": "input_lens",
            "output_tokens": "output_lens",
            "status": "errors",
        },
        time_unit="s",
        numbered=True,
    ),
    RecordFormat(
        name="guidellm-report",
        title="GuideLLM benchmark report",
        needs=("benchmarks[].requests",),
        detector=wants(("json", "jsonl"), "benchmarks"),
        expand=_guidellm,
        columns={
            "arrival": "benchmarks.requests.request_start_time",
            "prompt_tokens": "benchmarks.requests.prompt_tokens",
            "output_tokens": "benchmarks.requests.output_tokens",
            "request_id": "benchmarks.requests.request_id",
        },
        time_unit="s",
        numbered=True,
    ),
    RecordFormat(
        name="inference-perf",
        title="inference-perf per-request lifecycle metrics",
        needs=("start_time", "end_time", "request", "response", "info"),
        detector=wants(JSON_CONTAINERS, "start_time", "end_time", "request", "response", "info", "error"),
        expand=_inference_perf,
        columns={
            "arrival": "start_time",
            "prompt_tokens": "info.input_tokens",
            "output_tokens": "info.output_tokens",
            "cached_tokens": "info.response_metrics.server_usage.prompt_tokens_details.cached_tokens",
            "status": "error",
        },
        time_unit="s",
        numbered=True,
    ),
)
