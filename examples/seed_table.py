"""Prints the table of docs/static-batching.md: the article's simulator, as written and repaired.

Run from a checkout: ``python examples/seed_table.py``. It reads tests/naive/seed_article.py, which the tests check.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from naive.seed_article import Job, Report, fresh, report_literal, run, run_continuous, run_static, trace

RATES_PER_S = (1.0, 2.0, 3.0, 3.5, 10.0)


def row(name: str, figures: Report) -> str:
    """One line of the first table."""
    return (
        f"{name:<38} {figures.total_ms:>10.3f} {figures.tokens:>6} {figures.tokens_per_s:>9.3f} "
        f"{figures.median_latency_ms:>10.3f} {figures.p99_latency_ms:>10.3f} {figures.median_ttft_ms:>10.3f} "
        f"{figures.mean_latency_ms:>10.3f}"
    )


def comparison(name: str, jobs: list[Job], ms_per_unit: float) -> str:
    """One line of the second table."""
    static, continuous = run(run_static, jobs, ms_per_unit), run(run_continuous, jobs, ms_per_unit)
    return (
        f"{name:<38} {static.tokens_per_s:>8.1f} {continuous.tokens_per_s:>10.1f} "
        f"{continuous.tokens_per_s / static.tokens_per_s:>10.3f} "
        f"{static.median_latency_ms / continuous.median_latency_ms:>11.2f} "
        f"{static.p99_latency_ms / continuous.p99_latency_ms:>11.2f}"
    )


def table() -> str:
    """Both tables as text."""
    jobs = trace()
    literal_static, literal_continuous = report_literal(jobs)
    lines = [
        f"{'run':<38} {'total ms':>10} {'tokens':>6} {'tok/s':>9} {'p50 lat':>10} {'p99 lat':>10} {'p50 queue':>10} "
        f"{'mean lat':>10}",
        row("as written, static", literal_static),
        row("as written, continuous", literal_continuous),
    ]
    for units, ms_per_unit in (("arrivals as ms", 1.0), ("arrivals as s", 1000.0)):
        lines.append(row(f"own copies, {units}, static", run(run_static, jobs, ms_per_unit)))
        lines.append(row(f"own copies, {units}, continuous", run(run_continuous, jobs, ms_per_unit)))
    lines += [
        "",
        f"{'repaired':<38} {'static':>8} {'continuous':>10} {'throughput':>10} {'p50 latency':>11} {'p99 latency':>11}",
        f"{'':<38} {'tok/s':>8} {'tok/s':>10} {'ratio':>10} {'ratio':>11} {'ratio':>11}",
    ]
    lines += [comparison(f"{rate:g} req/s", trace(rate), 1000.0) for rate in RATES_PER_S]
    lines.append(comparison("all at once", fresh(jobs, arrival=0.0), 1.0))
    lines.append(comparison("all at once, 264 tokens each", fresh(jobs, arrival=0.0, output=264), 1.0))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
