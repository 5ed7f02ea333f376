"""The article's simulator, rebuilt: every figure recorded of it, to the printed digits (engine semantics 8.2)."""

import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest
from naive.seed_article import (
    BATCH,
    Job,
    Report,
    fresh,
    report_literal,
    run,
    run_continuous,
    run_static,
    trace,
)

AS_MS, AS_SECONDS = 1.0, 1000.0
POLICIES = {"static": run_static, "continuous": run_continuous}


def rounded(report: Report, digits: int) -> tuple[float, ...]:
    return tuple(round(value, digits) for value in astuple(report))


def test_the_trace_is_the_articles() -> None:
    jobs = trace()
    assert len(jobs) == 200
    assert round(jobs[-1].arrival, 4) == 18.3567
    assert sum(job.output for job in jobs) == 52_084
    assert sum(job.prompt for job in jobs) == 118_374
    assert all(16 <= job.output <= 512 for job in jobs)


def test_literal_code_prints_the_same_wrong_line_twice() -> None:
    static, continuous = report_literal(trace())
    assert static == continuous
    assert round(static.total_ms, 3) == 2567.582
    assert static.tokens == 52_284  # one too many for each of 200 requests
    assert [round(v) for v in (static.tokens_per_s, static.median_latency_ms, static.p99_latency_ms)] == [
        20_363,
        1289,
        2550,
    ]
    assert round(static.median_ttft_ms) == 1214
    assert round(static.mean_latency_ms, 1) == 1297.5


@pytest.mark.parametrize(
    ("policy", "ms_per_unit", "recorded"),
    [
        ("static", AS_MS, (94_200.037, 52_084, 552.908, 48_798.532, 94_182.151, 44_601.572, 48_725.214)),
        ("continuous", AS_MS, (55_791.582, 52_084, 933.546, 28_325.869, 55_285.415, 25_869.696, 28_073.114)),
        ("static", AS_SECONDS, (94_876.731, 52_084, 548.965, 39_819.749, 76_990.434, 35_622.789, 39_868.370)),
        ("continuous", AS_SECONDS, (56_181.486, 52_084, 927.067, 18_925.469, 38_064.646, 16_422.049, 18_941.707)),
    ],
)
def test_rows_with_own_copies(policy: str, ms_per_unit: float, recorded: tuple[float, ...]) -> None:
    assert rounded(run(POLICIES[policy], trace(), ms_per_unit), 3) == recorded


def test_reporting_static_before_the_second_run_would_have_claimed_37x() -> None:
    honest_static = run(run_static, trace(), AS_MS)
    _, spurious = report_literal(trace())
    assert round(spurious.tokens_per_s / honest_static.tokens_per_s, 1) == 36.8


@pytest.mark.parametrize(("ms_per_unit", "ratio"), [(AS_MS, 1.688), (AS_SECONDS, 1.689)])
def test_corrected_throughput_ratio(ms_per_unit: float, ratio: float) -> None:
    static, continuous = (run(policy, trace(), ms_per_unit) for policy in (run_static, run_continuous))
    assert round(continuous.tokens_per_s / static.tokens_per_s, 3) == ratio


def test_corrected_latency_ratios() -> None:
    static, continuous = (run(policy, trace(), AS_SECONDS) for policy in (run_static, run_continuous))
    assert round(static.median_latency_ms / continuous.median_latency_ms, 2) == 2.10
    assert round(static.p99_latency_ms / continuous.p99_latency_ms, 2) == 2.02


@pytest.mark.parametrize(("ms_per_unit", "steps", "occupancy"), [(AS_MS, 6678, 0.975), (AS_SECONDS, 6714, 0.970)])
def test_decode_steps_and_occupancy(ms_per_unit: float, steps: int, occupancy: float) -> None:
    jobs = trace()
    assert run_continuous(jobs, ms_per_unit) == steps
    assert round(52_084 / (steps * BATCH), 3) == occupancy


@pytest.mark.parametrize(
    ("jobs", "ms_per_unit", "static_rate", "continuous_rate", "ratio", "latency_ratio"),
    [
        (trace(1.0), AS_SECONDS, 278.3, 280.7, 1.008, 3.02),
        (trace(2.0), AS_SECONDS, 500.4, 553.9, 1.107, 4.62),
        (trace(3.0), AS_SECONDS, 538.4, 815.8, 1.515, 7.94),
        (trace(3.5), AS_SECONDS, 541.8, 877.0, 1.619, 6.08),
        (fresh(trace(), arrival=0.0), AS_MS, 552.9, 933.5, 1.688, None),
        (fresh(trace(), arrival=0.0, output=264), AS_MS, 934.1, 957.1, 1.025, None),
    ],
    ids=["1/s", "2/s", "3/s", "3.5/s", "all at once", "equal lengths"],
)
def test_other_rates(
    jobs: list[Job],
    ms_per_unit: float,
    static_rate: float,
    continuous_rate: float,
    ratio: float,
    latency_ratio: float | None,
) -> None:
    static, continuous = (run(policy, jobs, ms_per_unit) for policy in (run_static, run_continuous))
    assert round(static.tokens_per_s, 1) == static_rate
    assert round(continuous.tokens_per_s, 1) == continuous_rate
    assert round(continuous.tokens_per_s / static.tokens_per_s, 3) == ratio
    if latency_ratio is not None:
        assert round(static.median_latency_ms / continuous.median_latency_ms, 2) == latency_ratio


def test_the_page_quotes_what_the_command_prints(project_root: Path) -> None:
    command = [sys.executable, str(project_root / "examples" / "seed_table.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (project_root / "docs" / "static-batching.md").read_text(encoding="utf-8")
    assert f"```text\n{printed}```" in page
