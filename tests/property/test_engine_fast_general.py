"""The fast loop is the general loop, bit for bit, on thirty thousand random runs."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import assert_same_run, wide_case
from engines import run_fast, run_general

from replay.kernels.state import PREEMPTIONS

CHUNKS = 30
CASES_A_CHUNK = 1000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fast_is_general(chunk: int) -> None:
    rng = np.random.default_rng((2026, chunk))
    preempted, resumed, tables, asynchronous = 0, 0, 0, 0
    for case in range(CASES_A_CHUNK):
        c, r, law = wide_case(rng)
        general = run_general(c, r, law)
        cut = 1 if case % 100 == 0 else int(rng.integers(2, 40)) if case % 10 == 0 else 1 << 20
        try:
            assert_same_run(general, run_fast(c, r, law, steps_a_call=cut))
        except AssertionError as difference:
            raise AssertionError(f"case {case} of chunk {chunk}: {c}, {r}, {law.law}") from difference
        assert (general[0].generated == r.output_tokens).all(), "every token comes out"
        preempted += int(general[1].regs[0, PREEMPTIONS])
        resumed += int((general[0].preemptions > 1).sum())
        tables += law.decode_table_ps.size > 0
        asynchronous += c.batches_in_flight == 2
    assert preempted > 1000, "the cases must press on memory"
    assert resumed > 100, "requests must be preempted again after they were resumed"
    assert min(tables, asynchronous) > 200
