"""SGLang: the kernel and its naive twin against steps of the real scheduler (``tests/recorders/sglang_srt.py``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from naive.batches import Request
from naive.radix import RadixSglang
from naive.sglang import Sglang
from recorders.cases import digest

from replay.kernels.sglang import SglangOptions, advance_sglang, new_sglang
from replay.kernels.state import HIT_TOKENS, NEVER, PREVIOUS_END, SCHEDULED_TOKENS, STEPS, new_state
from replay.verify import read_cases

CASES = read_cases(Path(__file__).parents[3] / "data" / "sglang-0.5.23-scheduler-cases.json")
TOKENS = 4000
"""More than any batch of a case holds."""


def kernel_answer(case: dict[str, Any]) -> dict[str, Any]:
    c = engines.config(
        max_num_seqs=case["S"],
        max_num_batched_tokens=TOKENS,
        block_size=1,
        num_blocks=case["blocks"],
        batches_in_flight=1 + case["overlap"],
        table_width=max(p + m for p, m in zip(case["P"], case["M"], strict=True)) + 2,
    )
    options = SglangOptions(
        NEVER if case["chunk"] is None else case["chunk"],
        case["max_prefill_tokens"],
        case["ratio"],
        case["ratio"] * 0.14,
        radix=int(case["caching"]),
        lpm=int(case["policy"] == "lpm"),
    )
    shared = case["prefix"] if case["caching"] else [(0, 0)] * len(case["P"])
    rows = [[stream * 2**32 + k for k in range(length)] for stream, length in shared]
    r = engines.requests(case["arrival"], case["P"], case["N"])._replace(max_tokens=np.array(case["M"], np.int64))
    r = r._replace(
        prefix_start=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        prefix_ids=np.array([name for row in rows for name in row], np.int64),
    )
    state, own = new_state(c, len(rows)), new_sglang(c, options)
    while advance_sglang(c, options, r, engines.law_of(c, tuple(case["cost"])), state, own, 1 << 20):
        pass
    reg, outcome = state.meters.regs[0], state.outcome
    return {
        "steps": reg[STEPS],
        "end": reg[PREVIOUS_END],
        "first": outcome.first_ps.tolist(),
        "last": outcome.last_ps.tolist(),
        "preemptions": outcome.preemptions.tolist(),
        "scheduled": reg[SCHEDULED_TOKENS],
        "hits": reg[HIT_TOKENS],
    }


def twin_of(case: dict[str, Any]) -> Sglang:
    how: dict[str, Any] = {
        "chunk_size": case["chunk"],
        "max_prefill_tokens": case["max_prefill_tokens"],
        "ratio_first": case["ratio"],
        "ratio_least": case["ratio"] * 0.14,
    }
    of_engine = (case["S"], TOKENS, 1, case["blocks"], tuple(case["cost"]), 1 + case["overlap"])
    if not case["caching"]:
        return Sglang(*of_engine, **how)
    texts = {
        i: tuple(("shared", stream, k) if k < length else (i, k) for k in range(case["P"][i] + case["N"][i]))
        for i, (stream, length) in enumerate(case["prefix"])
    }
    return RadixSglang(*of_engine, **how, texts=texts, lpm=case["policy"] == "lpm")


@pytest.mark.parametrize("index", range(len(CASES)))
def test_every_recorded_case_matches(index: int) -> None:
    case = CASES[index]
    answer = kernel_answer(case)
    assert answer == {name: case[name] for name in answer}, case["mode"]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_the_twin_takes_every_recorded_step(index: int) -> None:
    case = CASES[index]
    twin = twin_of(case)
    rows = zip(case["arrival"], case["P"], case["N"], case["M"], strict=True)
    twin.run([Request(i, *row) for i, row in enumerate(rows)])
    assert digest(twin.log) == case["log"], case["mode"]
