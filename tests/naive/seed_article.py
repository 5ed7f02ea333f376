"""The article's toy simulator of static against continuous batching, rebuilt from its figures, defects on a switch.

Its trace: Python's ``random`` seeded with 42; each request draws an exponential gap, a prompt of 128..1024 tokens and
an output of 16..512 tokens, in this order. Its costs: 0.02 ms a prompt token, 8 ms a decode step, whatever the batch.
The prefill emits nothing: a request of N tokens takes N decode steps.

Defect 1: arrivals are in seconds and the clock counts milliseconds (``ms_per_unit=1``; 1000 is right).
Defect 2: both policies run on the same objects. The first run leaves every request complete, so in the second each
request is done after one step; and both reports then read what the second run wrote (``report_literal``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

BATCH = 8
PREFILL_MS_PER_TOKEN = 0.02
DECODE_STEP_MS = 8.0


@dataclass
class Job:
    """One request. ``arrival`` is in the trace's unit; the other times are in ms on the simulator's clock."""

    arrival: float
    prompt: int
    output: int
    generated: int = 0
    started_ms: float = 0.0
    finished_ms: float = 0.0


@dataclass(frozen=True)
class Report:
    """The article's figures. Its TTFT is start minus arrival: time in the queue, without the prefill."""

    total_ms: float
    tokens: int
    tokens_per_s: float
    median_latency_ms: float
    p99_latency_ms: float
    median_ttft_ms: float
    mean_latency_ms: float


def trace(rate_per_s: float = 10.0, count: int = 200, seed: int = 42) -> list[Job]:
    """The article's trace, arrivals in seconds."""
    draw = random.Random(seed)
    jobs, arrival = [], 0.0
    for _ in range(count):
        arrival += draw.expovariate(rate_per_s)
        prompt = draw.randint(128, 1024)
        jobs.append(Job(arrival, prompt, draw.randint(16, 512)))
    return jobs


def fresh(jobs: list[Job], **changes: float) -> list[Job]:
    """Copies that no run has touched, with fields changed."""
    return [replace(job, generated=0, started_ms=0.0, finished_ms=0.0, **changes) for job in jobs]


def run_static(jobs: list[Job], ms_per_unit: float) -> int:
    """Batches of eight in order: each waits for its last arrival, prefills padded, and decodes until its longest ends.

    Returns the number of decode steps.
    """
    now_ms, steps = 0.0, 0
    for at in range(0, len(jobs), BATCH):
        batch = jobs[at : at + BATCH]
        start_ms = max(now_ms, batch[-1].arrival * ms_per_unit)
        longest = max(job.output for job in batch)
        steps += longest
        padded_tokens = len(batch) * max(job.prompt for job in batch)
        now_ms = start_ms + padded_tokens * PREFILL_MS_PER_TOKEN + longest * DECODE_STEP_MS
        for job in batch:
            job.started_ms, job.finished_ms, job.generated = start_ms, now_ms, job.output
    return steps


def run_continuous(jobs: list[Job], ms_per_unit: float) -> int:
    """Up to eight at a time; a free place is filled before the next step. Each prefill holds up everything, and moves
    the clock before the next request is looked at.

    Returns the number of decode steps.
    """
    now_ms, steps, waiting = 0.0, 0, 0
    active: list[Job] = []
    while active or waiting < len(jobs):
        if not active:
            now_ms = max(now_ms, jobs[waiting].arrival * ms_per_unit)
        while waiting < len(jobs) and len(active) < BATCH and jobs[waiting].arrival * ms_per_unit <= now_ms:
            job = jobs[waiting]
            waiting += 1
            job.started_ms = now_ms
            now_ms += job.prompt * PREFILL_MS_PER_TOKEN
            active.append(job)
        now_ms += DECODE_STEP_MS
        steps += 1
        for job in active:
            job.generated += 1
            if job.generated >= job.output:
                job.finished_ms = now_ms
        active = [job for job in active if job.generated < job.output]
    return steps


def report(jobs: list[Job], ms_per_unit: float) -> Report:
    """The article's figures, from what the jobs hold now."""
    latency = sorted(job.finished_ms - job.arrival * ms_per_unit for job in jobs)
    ttft = sorted(job.started_ms - job.arrival * ms_per_unit for job in jobs)
    total_ms = max(job.finished_ms for job in jobs)
    tokens = sum(job.generated for job in jobs)
    return Report(
        total_ms=total_ms,
        tokens=tokens,
        tokens_per_s=tokens / total_ms * 1000.0,
        median_latency_ms=latency[len(latency) // 2],
        p99_latency_ms=latency[int(0.99 * len(latency))],
        median_ttft_ms=ttft[len(ttft) // 2],
        mean_latency_ms=sum(latency) / len(latency),
    )


def run(policy: Callable[[list[Job], float], int], jobs: list[Job], ms_per_unit: float) -> Report:
    """One policy on its own copies."""
    own = fresh(jobs)
    policy(own, ms_per_unit)
    return report(own, ms_per_unit)


def report_literal(jobs: list[Job]) -> tuple[Report, Report]:
    """Both defects together, as the article's code has them: (static, continuous) read from the same objects."""
    shared = fresh(jobs)
    run_static(list(shared), ms_per_unit=1.0)
    run_continuous(list(shared), ms_per_unit=1.0)
    return report(shared, 1.0), report(shared, 1.0)
