"""The fast loop against the general loop: every integer and every float, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from engine_cases import assert_same_run, with_tables
from engines import cases, law_of, random_case, run_fast, run_general

from replay.kernels.state import PREEMPTIONS, Config, Requests, StepTimes
from replay.verify import case_config, case_requests, case_times

CASES = Path(__file__).parents[3] / "data" / "vllm-0.33.0-scheduler-cases.json"


def test_recorded_cases() -> None:
    seen = 0
    for case in json.loads(CASES.read_text()):
        if case["mode"] in ("fcfs", "chunk_only", "watermark", "async"):
            run: tuple[Config, Requests, StepTimes] = (case_config(case), case_requests(case), case_times(case))
            assert_same_run(run_general(*run), run_fast(*run))
            seen += 1
    assert seen == 60


def test_random_cases_in_any_number_of_calls() -> None:
    rng = np.random.default_rng(2026)
    preempted = 0
    for _ in range(cases(600)):
        c, r, cost = random_case(rng)
        law = law_of(c, cost)
        if rng.random() < 0.3:
            law = with_tables(rng, law)
        general = run_general(c, r, law)
        assert_same_run(general, run_fast(c, r, law, steps_a_call=int(rng.choice([1, 7, 1 << 20]))))
        preempted += int(general[1].regs[0, PREEMPTIONS])
    assert preempted > cases(1000), "the cases must press on memory"
