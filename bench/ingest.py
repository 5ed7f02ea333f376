"""Rows per second of trace ingest, beside a plain line count of the same file in the same run.

Run: ``python bench/ingest.py [ROWS]`` (default 1,000,000). The ratio says how many plain counts one ingest costs; it
travels between machines, the rates do not. "CPU" is the time of all threads together.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions, TimeUnit

REPEATS = 3


def lines(kind: str, n: int) -> Iterator[str]:
    """A made-up trace of ``n`` requests in one of the formats."""
    rng = np.random.Generator(np.random.PCG64(1))
    micros = np.cumsum(rng.integers(0, 3_000, n))
    prompt, output = rng.integers(1, 5_000, n), rng.integers(1, 500, n)
    start = np.datetime64("2024-05-12T00:00:00", "us")
    rows = zip(micros.tolist(), prompt.tolist(), output.tolist(), strict=True)
    if kind == "azure CSV":
        yield "TIMESTAMP,ContextTokens,GeneratedTokens"
        for t, p, o in rows:
            yield f"{str(start + t).replace('T', ' ')}+00:00,{p},{o}"
    elif kind == "own CSV":
        yield "arrival_s,prompt_tokens,output_tokens"
        for t, p, o in rows:
            yield f"{t / 1e6:.6f},{p},{o}"
    elif kind == "own JSONL":
        for t, p, o in rows:
            yield f'{{"arrival_us": {t}, "prompt_tokens": {p}, "output_tokens": {o}}}'
    else:
        for t, p, o in rows:
            ids = ", ".join(map(str, range(t % 97, t % 97 + -(-p // 512))))
            yield f'{{"timestamp": {t // 1000}, "input_length": {p}, "output_length": {o}, "hash_ids": [{ids}]}}'


def count_lines(path: Path) -> int:
    """What ``wc -l`` does."""
    with path.open("rb") as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(2**20), b""))


def best(action: object, *arguments: object) -> tuple[float, float]:
    """Least wall and CPU seconds over the repeats."""
    walls, cpus = [], []
    assert callable(action)
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        action(*arguments)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'format':12} {'rows':>11} {'rows/s':>12} {'rows/CPU s':>12} {'line count':>11} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, rows in (("azure CSV", n), ("own CSV", n), ("own JSONL", n // 2), ("mooncake", n // 4)):
            path = folder / "trace"
            path.write_text("".join(line + "\n" for line in lines(kind, rows)))
            count, _ = best(count_lines, path)
            unit: TimeUnit | None = "ms" if kind == "mooncake" else None  # its rate is above what is taken unasked
            wall, cpu = best(ingest, path, folder / "out.parquet", IngestOptions(time_unit=unit))
            print(f"{kind:12} {rows:11,} {rows / wall:12,.0f} {rows / cpu:12,.0f} {count:9.3f} s {wall / count:7.1f}")


if __name__ == "__main__":
    main()
