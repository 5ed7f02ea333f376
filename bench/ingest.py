"""Rows per second of trace ingest, its memory, and how soon it can be cancelled.

Run: ``python bench/ingest.py [--rows N] [--format NAME]... [--repeats N]``. Each format is read in a process of its
own, so that its peak of resident memory is its own. "CPU" is the time of all threads together; "line count" is a count
of the same file's lines in the same run, and "ratio" says how many of those one ingest costs: it travels between
machines, the rates do not. "longest gap" is the longest CPU time without a look at whether the job was cancelled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions, TimeUnit

FORMATS = {"azure CSV": 1, "own CSV": 1, "own JSONL": 2, "mooncake": 4, "spans": 10, "access log": 10}
"""Format to the divisor of its number of rows: some take longer a row. A row of the spans (OTLP) is a line of one."""
CHUNK_ROWS = 200_000
EPOCH_NS = 1_772_442_000 * 10**9


@dataclass(frozen=True)
class Reading:
    """What reading one file cost; times in seconds."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    longest_gap_s: float


def lines(kind: str, n: int) -> Iterator[str]:
    """A made-up trace of ``n`` requests in one of the formats."""
    rng = np.random.Generator(np.random.PCG64(1))
    start = np.datetime64("2024-05-12T00:00:00", "us")
    if kind == "azure CSV":
        yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    elif kind == "own CSV":
        yield "arrival_s,prompt_tokens,output_tokens"
    last = 0
    for first in range(0, n, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, n - first)
        micros = last + np.cumsum(rng.integers(0, 3_000, rows))
        last = int(micros[-1])
        prompt, output = rng.integers(1, 5_000, rows), rng.integers(1, 500, rows)
        for t, p, o in zip(micros.tolist(), prompt.tolist(), output.tolist(), strict=True):
            if kind == "azure CSV":
                yield f"{str(start + t).replace('T', ' ')}+00:00,{p},{o}"
            elif kind == "own CSV":
                yield f"{t / 1e6:.6f},{p},{o}"
            elif kind == "spans":
                yield _span(t, p, o)
            elif kind == "access log":
                yield _access(t, p, o)
            elif kind == "own JSONL":
                yield f'{{"arrival_us": {t}, "prompt_tokens": {p}, "output_tokens": {o}}}'
            else:
                ids = ", ".join(map(str, range(t % 97, t % 97 + -(-p // 512))))
                yield f'{{"timestamp": {t // 1000}, "input_length": {p}, "output_length": {o}, "hash_ids": [{ids}]}}'


def _span(t: int, prompt: int, output: int) -> str:
    """One call of a model as an OTLP batch, with the attributes of the GenAI conventions."""
    start = EPOCH_NS + t * 1000
    said: dict[str, dict[str, str]] = {
        "gen_ai.operation.name": {"stringValue": "chat"},
        "gen_ai.provider.name": {"stringValue": "vllm"},
        "gen_ai.request.model": {"stringValue": "demo"},
        "gen_ai.usage.input_tokens": {"intValue": str(prompt)},
        "gen_ai.usage.output_tokens": {"intValue": str(output)},
    }
    span = {
        "traceId": f"{t:032x}",
        "spanId": f"{t + 1:016x}",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + output * 20_000_000),
        "status": {},
        "attributes": [{"key": key, "value": value} for key, value in said.items()],
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def _access(t: int, prompt: int, output: int) -> str:
    """One line of Envoy AI Gateway's access log."""
    at = datetime.fromtimestamp(EPOCH_NS // 10**9 + t // 10**6, UTC)
    row = {
        "start_time": f"{at:%Y-%m-%dT%H:%M:%S}.{t // 1000 % 1000:03d}Z",
        "duration": output * 20,
        "response_code": 200,
        "method": "POST",
        "request.path": "/v1/chat/completions",
        "gen_ai.request.model": "demo",
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": output,
        "x-request-id": f"{t:x}",
    }
    return json.dumps(row)


def write(path: Path, kind: str, rows: int) -> None:
    """The file, without ever holding it."""
    with path.open("w") as handle:
        handle.writelines(line + "\n" for line in lines(kind, rows))


def count_lines(path: Path) -> int:
    """What ``wc -l`` does."""
    with path.open("rb") as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(2**20), b""))


def read(path: Path, unit: TimeUnit | None) -> Reading:
    """One ingest in this process."""
    longest, before = 0.0, time.process_time()

    def progress(_done: int, _total: int) -> None:
        nonlocal longest, before
        now = time.process_time()
        longest, before = max(longest, now - before), now

    wall, cpu = time.perf_counter(), time.process_time()
    ingest(path, path.with_name("out.parquet"), IngestOptions(time_unit=unit), progress)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Reading(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--format", action="append", choices=list(FORMATS), dest="formats", help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    print(
        f"{'format':10} {'rows':>11} {'MiB':>7} {'rows/s':>10} {'rows/CPU s':>10} {'line count':>11} {'ratio':>6} "
        f"{'peak RSS':>10} {'longest gap':>11}"
    )
    for kind in asked.formats or FORMATS:
        rows = asked.rows // FORMATS[kind]
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "trace"
            write(path, kind, rows)
            started = time.perf_counter()
            count_lines(path)
            count = time.perf_counter() - started
            unit: TimeUnit | None = "ms" if kind == "mooncake" else None  # its rate is above what is taken unasked
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                readings = [pool.apply(read, (path, unit)) for _ in range(asked.repeats)]
            wall, cpu = min(one.wall_s for one in readings), min(one.cpu_s for one in readings)
            peak = max(one.peak_rss_bytes for one in readings) / 2**20
            gap = min(one.longest_gap_s for one in readings)
            print(
                f"{kind:10} {rows:11,} {path.stat().st_size / 2**20:7,.0f} {rows / wall:10,.0f} {rows / cpu:10,.0f} "
                f"{count:9.3f} s {wall / count:6.1f} {peak:6,.0f} MiB {gap:9.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
