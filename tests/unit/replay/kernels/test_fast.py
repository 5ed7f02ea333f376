"""The fast loop against the general loop: every integer and every float, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from engines import law_of, random_case, run_fast, run_general

from replay.kernels.state import (
    FREE_BLOCKS,
    MAX_USED_BLOCKS,
    PREEMPTIONS,
    PREVIOUS_END,
    RUNNING,
    SCHEDULED_TOKENS,
    STEPS,
    Config,
    Meters,
    Outcome,
    Requests,
    StepTimes,
)
from replay.verify import case_config, case_requests, case_times

CASES = Path(__file__).parents[3] / "data" / "vllm-0.33.0-scheduler-cases.json"
CASES_HERE = 600
SHARED = [STEPS, SCHEDULED_TOKENS, PREEMPTIONS, MAX_USED_BLOCKS, PREVIOUS_END, FREE_BLOCKS, RUNNING]


def assert_equal(general: tuple[Outcome, Meters], fast: tuple[Outcome, Meters]) -> None:
    for name in ("admitted_ps", "first_ps", "last_ps", "preemptions"):
        assert np.array_equal(getattr(general[0], name), getattr(fast[0], name)), name
    assert np.array_equal(general[1].regs[0, SHARED], fast[1].regs[0, SHARED])
    assert np.array_equal(general[1].meters, fast[1].meters)
    assert np.array_equal(general[1].gaps, fast[1].gaps)
    assert np.array_equal(general[1].cluster[[0, 2, 3]], fast[1].cluster[[0, 2, 3]])


def with_tables(rng: np.random.Generator, law: StepTimes) -> StepTimes:
    """The law with random increasing attention tables and host terms on top."""

    def table() -> np.ndarray:
        return np.cumsum(np.cumsum(rng.integers(0, 5, (4, 6)), 0), 1).astype(np.int64)

    scalars = law.law.copy()
    scalars[0], scalars[3], scalars[4] = rng.integers(0, 3), rng.integers(0, 200), rng.integers(0, 4)
    return law._replace(decode_table_ps=table(), prefill_table_ps=table(), law=scalars)


def test_recorded_cases() -> None:
    seen = 0
    for case in json.loads(CASES.read_text()):
        if case["mode"] in ("fcfs", "chunk_only", "watermark", "async"):
            run: tuple[Config, Requests, StepTimes] = (case_config(case), case_requests(case), case_times(case))
            assert_equal(run_general(*run), run_fast(*run))
            seen += 1
    assert seen == 60


def test_random_cases_in_any_number_of_calls() -> None:
    rng = np.random.default_rng(2026)
    preempted = 0
    for _ in range(CASES_HERE):
        c, r, cost = random_case(rng)
        law = law_of(c, cost)
        if rng.random() < 0.3:
            law = with_tables(rng, law)
        general = run_general(c, r, law)
        assert_equal(general, run_fast(c, r, law, steps_a_call=int(rng.choice([1, 7, 1 << 20]))))
        preempted += int(general[1].regs[0, PREEMPTIONS])
    assert preempted > 1000, "the cases must press on memory"
