"""A trace of tens of millions of rows through a running service: its speed, its memory, its progress, a cancel.

Run: ``python bench/big_trace.py [--rows 40000000] [--folder FOLDER]``. Writes a CSV of the Azure 2024 columns into
FOLDER (default: the system's temporary folder), starts ``capreplay serve`` there, uploads it over HTTP and follows the
ingest job. "Peak RSS" is the kernel's own high-water mark (VmHWM) of the job process, read while it runs. Then the file
is uploaded twice more and the job cancelled, once while it reads and once while it writes. Everything is deleted again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from demo import call, started, wait_until_ready

CHUNK_ROWS = 1_000_000
POLL_S = 0.1
MIB = 2**20


def write_csv(path: Path, rows: int) -> None:
    """The file, a million rows at a time: about 40 bytes a row, 1.5 ms from one request to the next on average."""
    rng = np.random.Generator(np.random.PCG64(1))
    last = np.datetime64("2024-05-12T00:00:00", "us").astype(np.int64)
    with path.open("wb") as file:
        for first in range(0, rows, CHUNK_ROWS):
            n = min(CHUNK_ROWS, rows - first)
            micros = last + np.cumsum(rng.integers(0, 3_000, n))
            last = micros[-1]
            frame = pl.DataFrame(
                {
                    "TIMESTAMP": pl.Series(micros).cast(pl.Datetime("us")).dt.strftime("%Y-%m-%d %H:%M:%S%.6f+00:00"),
                    "ContextTokens": rng.integers(1, 5_000, n),
                    "GeneratedTokens": rng.integers(1, 500, n),
                }
            )
            frame.write_csv(file, include_header=first == 0)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    try:  # a child belongs to the thread that started it
        children = [one for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]
    except OSError:
        return []
    return [one for child in children for one in (int(child), *descendants(int(child)))]


def peak_rss_bytes(pid: int) -> int:
    """The high-water mark of a process; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


@dataclass
class Followed:
    """What was seen of one job."""

    seconds: float = 0.0
    status: str = ""
    progress: list[tuple[float, float]] = field(default_factory=list)
    """Seconds from when a worker took it, and the share done, at each change."""
    peaks: dict[int, int] = field(default_factory=dict)
    cancel_s: float | None = None
    """From the answer to the cancel to the job's end as a client sees it."""


def follow(base: str, job_id: str, server: int, cancel_at: float | None = None) -> Followed:
    """Polls a job to its end; asks it to stop as soon as ``cancel_at`` of it is done."""
    seen, began, asked = Followed(), time.monotonic(), 0.0
    while True:
        job: dict[str, Any] = call("GET", f"{base}/v1/jobs/{job_id}")
        now = time.monotonic()
        if job["status"] == "queued":
            began = now
        for pid in descendants(server):
            seen.peaks[pid] = max(seen.peaks.get(pid, 0), peak_rss_bytes(pid))
        if not seen.progress or job["progress"] != seen.progress[-1][1]:
            seen.progress.append((now - began, job["progress"]))
        if job["status"] in ("succeeded", "failed", "cancelled"):
            seen.seconds, seen.status = now - began, job["status"]
            seen.cancel_s = now - asked if asked else None
            if job["error"] is not None:
                print(job["error"])
            return seen
        if cancel_at is not None and not asked and job["progress"] >= cancel_at:
            call("POST", f"{base}/v1/jobs/{job_id}/cancel")
            asked = time.monotonic()
        time.sleep(POLL_S)


def upload(base: str, path: Path, stream: str, rejected_share: float) -> dict[str, Any]:
    """The trace's JSON; another ``rejected_share`` makes it another ingest of the same content."""
    with path.open("rb") as file:
        url = f"{base}/v1/traces?stream={stream}&max_rejected_share={rejected_share}"
        answer: dict[str, Any] = call("PUT", url, file, path.stat().st_size)
    return answer


def measure(base: str, path: Path, rows: int, server: int) -> None:
    """Prints the whole ingest, then the two cancels."""
    began = time.monotonic()
    trace = upload(base, path, "whole", 0.05)
    print(f"upload: {path.stat().st_size / (time.monotonic() - began) / MIB:,.0f} MiB/s", flush=True)
    seen = follow(base, trace["ingest_job_id"], server)
    print(f"ingest: {seen.status} in {seen.seconds:,.1f} s, {rows / seen.seconds:,.0f} rows/s")
    print(f"peak RSS of the job process: {max(seen.peaks.values()) / MIB:,.0f} MiB")
    shares = [share for _, share in seen.progress]
    waits = np.diff([at for at, _ in seen.progress])
    said = ", ".join(f"{share:.0%} at {at:.0f} s" for at, share in seen.progress[:: max(1, len(shares) // 8)])
    print(f"progress: {len(shares)} steps, longest wait {waits.max():.1f} s, never back: {shares == sorted(shares)}")
    print(f"  {said}", flush=True)
    done = call("GET", f"{base}/v1/traces/{trace['id']}/cleaning-report")["cleaning"]
    print(f"rows read {done['rows_read']:,} = kept {done['rows_kept']:,} + rejected {done['rows_rejected']:,}")
    if done["rows_kept"] != rows:
        raise SystemExit(f"{rows:,} rows were written")
    for number, cancel_at in enumerate((0.3, 0.95)):
        trace = upload(base, path, f"cancel{number}", 0.06 + number / 100)
        seen = follow(base, trace["ingest_job_id"], server, cancel_at)
        print(f"cancel at {cancel_at:.0%}: {seen.status} after {seen.cancel_s:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="default: the system's temporary folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="capreplay-big-", dir=asked.folder) as name:
        folder = Path(name)
        path = folder / "big.csv"
        write_csv(path, asked.rows)
        print(f"{asked.rows:,} rows, {path.stat().st_size / 1e9:.2f} GB", flush=True)
        command = [str(Path(sys.executable).parent / "capreplay"), "serve", "--port", "0", "--json"]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [*command, "--data-dir", str(folder / "data")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "CAPREPLAY_WORKER_WARMUP": "false"},  # kernels take no part in an ingest
            )
            try:
                base = started(server)["address"]
                wait_until_ready(base)
                measure(base, path, asked.rows, server.pid)
            finally:
                server.terminate()
                server.wait(60)


if __name__ == "__main__":
    main()
