"""AIPerf's ``profile_export.jsonl``: one request a line with its metrics, as the load generator measured them.

Source: AIPerf's documentation of its exports. Output sequence length includes reasoning tokens.
"""

from __future__ import annotations

from typing import Any

from replay.traces.formats.links import Ends, scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row, wants
from replay.traces.rows import JSON_CONTAINERS
from replay.traces.times import UNIT_NS


def _value(metrics: dict[str, Any], name: str) -> Any:
    metric = metrics.get(name)
    return metric.get("value") if isinstance(metric, dict) else metric


def _visible_and_reasoning(metrics: dict[str, Any]) -> Any:
    """The output of files without its length: AIPerf's ``output_token_count`` leaves reasoning out."""
    output, reasoning = (_value(metrics, name) for name in ("output_token_count", "reasoning_token_count"))
    numbers = all(isinstance(value, (int, float)) for value in (output, reasoning))
    return output + reasoning if numbers else output


def _time_ns(metrics: dict[str, Any], name: str) -> int | None:
    metric = metrics.get(name)
    if not isinstance(metric, dict):
        return None
    unit = UNIT_NS.get(str(metric.get("unit")))
    return None if unit is None else scaled_ns(metric.get("value"), unit)


def _between(start: int | None, end: int | None) -> int | None:
    """How long a request took that was cancelled, of which no latency is given."""
    return None if start is None or end is None or end < start else end - start


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    meta = record["metadata"]
    phase = meta.get("benchmark_phase")
    if phase not in (None, "profiling"):
        reading.not_request(f"{phase} requests")
        return []
    metrics = record.get("metrics") or {}
    start, end = scaled_ns(meta.get("request_start_ns"), 1), scaled_ns(meta.get("request_end_ns"), 1)
    status = "failed" if record.get("error") else "aborted" if meta.get("was_cancelled") is True else "ok"
    output = _value(metrics, "output_sequence_length")
    row: Row = {
        "arrival": meta.get("request_start_ns"),
        "prompt_tokens": _value(metrics, "input_sequence_length"),
        "output_tokens": output if output is not None else _visible_and_reasoning(metrics),
        "reasoning_tokens": _value(metrics, "reasoning_token_count"),
        "session": meta.get("conversation_id"),
        "status": status,
        "source_ttft_ns": _time_ns(metrics, "time_to_first_token"),
        "source_e2e_ns": _time_ns(metrics, "request_latency")
        or (_between(start, end) if status == "aborted" else None),
        "request_id": meta.get("x_request_id"),
    }
    talk = meta.get("x_correlation_id") or meta.get("conversation_id")
    number = reading.expanded
    talks: dict[str, Ends] = reading.state.setdefault("talks", {})
    turn = meta.get("turn_index")
    if isinstance(talk, str) and isinstance(turn, int):
        ends = talks.setdefault(talk, Ends()) if turn == 0 or talk in talks else None
        before = ends.before(start) if ends is not None and turn > 0 else None
        if before is not None and start is not None:
            row["after_back"], row["delay_ns"] = number - before[1], start - before[0]
        if ends is not None:
            ends.add(end, number)
    return [row]


FORMATS = (
    RecordFormat(
        name="aiperf-profile-export",
        title="AIPerf profile export",
        needs=("metadata.request_start_ns", "metadata.request_end_ns", "metrics", "error"),
        detector=wants(JSON_CONTAINERS, "metadata", "metadata.request_start_ns", "metadata.request_end_ns", "metrics"),
        expand=_expand,
        columns={
            "arrival": "metadata.request_start_ns",
            "prompt_tokens": "metrics.input_sequence_length.value",
            "output_tokens": "metrics.output_sequence_length.value",
            "reasoning_tokens": "metrics.reasoning_token_count.value",
            "session": "metadata.conversation_id",
            "status": "error",
            "request_id": "metadata.x_request_id",
        },
        time_unit="ns",
        epoch_only=True,
        numbered=True,
    ),
)
