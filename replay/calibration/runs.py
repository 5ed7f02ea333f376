"""Measured runs of load generators: what was sent when, and how long first token and whole answer took.

Read by the trace readers (vLLM ``bench serve`` with details, GuideLLM, AIPerf, inference-perf and any trace with source
latencies); figures that cannot be are refused first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.calibration.files import content, head, json_documents, naming, refusal
from replay.errors import TraceError
from replay.specs import Transform
from replay.traces import canonical
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from replay.traces.report import IngestReport
from replay.traces.transforms import load_workload
from replay.workload import Workload

Float64Array = npt.NDArray[np.float64]

LEAST_REQUESTS = 20
MAX_FAILED_SHARE = 0.02
MAX_CACHED_SHARE = 0.02
_TOKENS_PER_CHUNK = 1.3
"""Above it chunks carry several tokens; speculative decoding and batching of the stream both look like this."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run: the workload as sent, and measured latencies in seconds, shape (n,), NaN where a request has none."""

    name: str
    workload: Workload
    ttft_s: Float64Array
    e2e_s: Float64Array
    notes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Names of the models that the file says answered."""

    @property
    def itl_s(self) -> Float64Array:
        """Mean gap between tokens of each request; NaN with fewer than two tokens."""
        gaps = np.maximum(self.workload.output_tokens - 1, 1)
        return np.where(self.workload.output_tokens > 1, (self.e2e_s - self.ttft_s) / gaps, np.nan)


def read_run(path: Path, options: IngestOptions | None = None) -> MeasuredRun:
    """A run from a file of any trace format that carries latencies.

    Raises:
        TraceError: as the readers do; ``calibration.*`` for latencies that cannot be or are too few. Names the file.
    """
    with naming(path):
        return _read(path, options)


def _read(path: Path, options: IngestOptions | None) -> MeasuredRun:
    _check_bench(path)
    with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
        kept = Path(folder) / "trace.parquet"
        report = _ingested(path, kept, options)
        workload = load_workload(kept, Transform(max_excluded_share=1.0), 0)
        frame = canonical.scan(kept).collect()
    frame = frame.filter(
        pl.col("arrival_ns").is_not_null()
        & pl.col("prompt_tokens").is_not_null()
        & pl.col("output_tokens").is_not_null()
        & pl.col("status").ne_missing("cache_hit")
    )
    if frame.height != workload.n:
        raise RuntimeError("the workload and the measured requests differ: this is a defect of the reader")
    ok = (frame["status"].cast(pl.String).fill_null("ok") == "ok").to_numpy() & (workload.output_tokens > 0)
    ttft_s, e2e_s = (
        np.where(ok, frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy() / 1e9, np.nan)
        for name in ("source_ttft_ns", "source_e2e_ns")
    )
    _check_latencies(path.name, workload, ok, ttft_s, e2e_s)
    _check_cached(path.name, workload, int(frame["cached_tokens"].sum()))
    notes = tuple(f"{path.name}: {one}" for one in report.warnings if "in flight" in one)
    models = tuple(frame["model"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list())
    return MeasuredRun(path.name, workload, ttft_s, e2e_s, notes, models)


def _ingested(path: Path, canonical: Path, options: IngestOptions | None) -> IngestReport:
    try:
        return ingest(path, canonical, options)
    except TraceError as error:
        if error.code != "trace.unknown_columns":
            raise
        detail = f"{path.name} is neither a result of a known load generator nor a table of steps"
        cure = (
            "send the result of vLLM bench serve (--save-detailed), GuideLLM, AIPerf or inference-perf, or a table "
            "with prefill_tokens, decode_requests, decode_context_tokens and time_s"
        )
        raise refusal("file_kind", detail, cure) from error


def _check_latencies(name: str, workload: Workload, ok: Any, ttft_s: Float64Array, e2e_s: Float64Array) -> None:
    timed = int(np.isfinite(e2e_s).sum())
    if timed < LEAST_REQUESTS:
        cure = "run the benchmark with per-request details, and at least 20 requests"
        raise refusal("too_few", f"{name}: {timed} requests have a latency, fewer than {LEAST_REQUESTS}", cure)
    failed = float((~ok).mean())
    if failed > MAX_FAILED_SHARE:
        cure = "measure below overload: failed requests loaded the server for an unknown time"
        raise refusal("failed", f"{name}: {failed:.0%} of the requests failed", cure)
    bad = np.isfinite(e2e_s) & ((e2e_s <= 0) | (ttft_s < 0) | (ttft_s > e2e_s * 1.000001))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        detail = f"{name}: request {row + 1} has TTFT {ttft_s[row]:g} s and E2E {e2e_s[row]:g} s"
        raise refusal("latency", detail, "latencies are above 0, and the first token comes before the last")


def _check_cached(name: str, workload: Workload, cached_tokens: int) -> None:
    share = cached_tokens / int(workload.prompt_tokens.sum())
    if workload.prefix is None and share > MAX_CACHED_SHARE:
        detail = f"{name}: {100 * share:.0f} % of the prompt tokens were cached, and the file does not say which"
        raise refusal("cached", detail, "measure with prompts that share no text, or with prefix caching off")


def _check_bench(path: Path) -> None:
    """Raw figures of a vLLM ``bench serve`` result that the trace reader has no need of."""
    for record in _bench_records(path):
        outputs, gaps, ttfts = (record.get(name) for name in ("output_lens", "itls", "ttfts"))
        if not isinstance(ttfts, list) or not isinstance(gaps, list) or not isinstance(outputs, list):
            cure = "run the benchmark again with --save-result --save-detailed"
            raise refusal("no_detail", f"{path.name} holds no single latencies (ttfts, itls)", cure)
        for index, (ttft, inner) in enumerate(zip(ttfts, gaps, strict=False)):
            for value in (ttft, *(inner if isinstance(inner, list) else ())):
                if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                    detail = f"{path.name}: request {index + 1} has a latency of {str(value)[:40]}"
                    raise refusal("latency", detail, "look for the fault in the tool that wrote the file")
        longest = max((t + sum(inner) for t, inner in zip(ttfts, gaps, strict=False) if inner), default=0.0)
        duration = record.get("duration")
        if isinstance(duration, int | float) and duration > 0 and longest > 2 * duration:
            detail = f"{path.name}: a request takes {longest:g} s, but the whole run {duration:g} s"
            raise refusal("unit", detail, "ttfts and itls are in seconds; these look like milliseconds")
        pairs = [(n, len(inner)) for n, inner in zip(outputs, gaps, strict=False) if inner and isinstance(n, int)]
        tokens, chunks = sum(n - 1 for n, _ in pairs), sum(count for _, count in pairs)
        if chunks and not 1 / _TOKENS_PER_CHUNK < tokens / chunks < _TOKENS_PER_CHUNK:
            detail = f"{path.name}: {tokens / chunks:.2g} output tokens per streamed chunk"
            cure = (
                "calibrate from a server that streams every token apart (no speculative decoding, stream interval 1), "
                "with the token counts that the server itself states"
            )
            raise refusal("tokens_per_chunk", detail, cure)


def _bench_records(path: Path) -> Iterator[dict[str, Any]]:
    first = head(path)
    line = next(json_documents(first.partition(b"\n")[0]), None)
    if not first.startswith(b"{") or (line is not None and not _is_bench(line)):
        return
    yield from (record for record in json_documents(content(path)) if _is_bench(record))


def _is_bench(record: object) -> bool:
    return isinstance(record, dict) and {"model_id", "num_prompts", "completed"} <= record.keys()
