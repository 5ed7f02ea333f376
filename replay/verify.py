"""Replays recorded scheduler cases (steps of the real vLLM scheduler) and compares every integer.

A case fixes the scheduler settings, a linear step law, and the requests; it records the number of steps, the end,
first and last token time of each request, preemptions, scheduled tokens and prefix-hit tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replay.errors import FieldError, SpecError
from replay.kernels.engine import advance
from replay.kernels.state import (
    HIT_TOKENS,
    PREVIOUS_END,
    ROUND_ROBIN,
    SCHEDULED_TOKENS,
    STEPS,
    Config,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.steptime.record import no_table
from replay.vllm_releases import kernel_rules, scheduling_rules

_COMPARED = ("steps", "end", "first", "last", "preemptions", "scheduled", "hits")
_EVENTS_A_CALL = 1 << 20


def case_rules(case: dict[str, Any]) -> Mapping[str, bool]:
    """The rules of the vLLM release that a case was recorded on; 0.33 where it names none."""
    major, minor = case.get("release", "0.33.0").split(".")[:2]
    return scheduling_rules((int(major), int(minor)))


def case_config(case: dict[str, Any]) -> Config:
    """Kernel settings of a recorded case. Its watermark counts vLLM's null block, which ``blocks`` leaves out."""
    longest = max(p + n for p, n in zip(case["P"], case["N"], strict=True))
    return Config(
        replicas=1,
        router=ROUND_ROBIN,
        max_num_seqs=case["S"],
        max_num_batched_tokens=case["B"],
        block_size=case["bs"],
        num_blocks=case["blocks"],
        batches_in_flight=2 if case["async_"] else 1,
        long_prefill_token_threshold=case["thr"],
        enable_chunked_prefill=int(case["chunked"]),
        reserve_full_isl=int(case["full_isl"]),
        watermark_blocks=int(case["watermark"] * (case["blocks"] + 1)),
        max_model_len=case.get("max_model_len", 1 << 40),
        priority_policy=int(case["policy"] == "priority"),
        prefix_caching=int(case["caching"]),
        table_width=-(-longest // case["bs"]) + 1,
        prefix_block_tokens=case["bs"],
        **kernel_rules(case_rules(case), case["policy"] == "priority", case["async_"]),
    )


def case_requests(case: dict[str, Any]) -> Requests:
    """Requests of a recorded case; a shared prompt prefix becomes block ids ``stream * 2**32 + i`` of its full
    blocks."""
    n = len(case["P"])
    empty = np.zeros(0, np.int64)
    starts, ids = [0], list[int]()
    if case["caching"]:
        for (stream, shared), prompt in zip(case["prefix"], case["P"], strict=True):
            ids += [stream * 2**32 + i for i in range(min(shared, prompt) // case["bs"])]
            starts.append(len(ids))
    return Requests(
        arrival_ps=np.array(case["arrival"], np.int64),
        prompt_tokens=np.array(case["P"], np.int64),
        output_tokens=np.array(case["N"], np.int64),
        priority=np.array(case["priority"], np.int64) if case["policy"] == "priority" else empty,
        prefix_start=np.array(starts, np.int64) if case["caching"] else empty,
        prefix_ids=np.array(ids, np.int64) if n else empty,
    )


def case_times(case: dict[str, Any]) -> StepTimes:
    """The recorded law ``max(w, a T) + b K + e A2 + o`` as a step-time record."""
    w, a, b, e2, o = case["cost"]
    tokens = np.arange(case["B"] + 1, dtype=np.int64)
    return StepTimes(
        rest_ps=np.maximum(w, a * tokens) + o,
        decode_table_ps=no_table(),
        prefill_table_ps=no_table(),
        law=np.array([0, b, e2, 0, 0, 0], np.int64),
    )


def replay_case(case: dict[str, Any]) -> tuple[dict[str, Any], State]:
    """Our answer to a recorded case, under the record's own names, and the final state."""
    config, requests, times = case_config(case), case_requests(case), case_times(case)
    state = new_state(config, len(requests.arrival_ps))
    mask = bucket_count(config.num_blocks) - 1
    while advance(config, requests, times, state, mask, _EVENTS_A_CALL):
        pass
    reg = state.meters.regs[0]
    return {
        "steps": int(reg[STEPS]),
        "end": int(reg[PREVIOUS_END]),
        "first": state.outcome.first_ps.tolist(),
        "last": state.outcome.last_ps.tolist(),
        "preemptions": state.outcome.preemptions.tolist(),
        "scheduled": int(reg[SCHEDULED_TOKENS]),
        "hits": int(reg[HIT_TOKENS]),
    }, state


def _difference(case: dict[str, Any]) -> str | None:
    answer, _ = replay_case(case)
    for name in _COMPARED:
        if name == "hits" and not case["caching"]:
            continue
        ours, recorded = answer[name], case[name]
        if ours == recorded:
            continue
        if isinstance(ours, list):
            at = next(i for i, (x, y) in enumerate(zip(ours, recorded, strict=True)) if x != y)
            return f"{name}[{at}]: {ours[at]} here, {recorded[at]} recorded"
        return f"{name}: {ours} here, {recorded} recorded"
    return None


def read_cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a file: a JSON list of them, or an object with that list under ``cases`` and notes beside it."""
    document = json.loads(path.read_text())
    cases: list[dict[str, Any]] = document["cases"] if isinstance(document, dict) else document
    return cases


def verify(path: Path) -> dict[str, Any]:
    """Replays every case of a file.

    Returns ``{"modes": {mode: {"passed", "total", "first_difference"}}}``.

    Raises:
        SpecError: where the file holds no recorded cases.
    """
    try:
        cases = read_cases(path)
        modes: dict[str, dict[str, Any]] = {}
        for index, case in enumerate(cases):
            mode = modes.setdefault(case["mode"], {"passed": 0, "total": 0, "first_difference": None})
            mode["total"] += 1
            difference = _difference(case)
            if difference is None:
                mode["passed"] += 1
            elif mode["first_difference"] is None:
                mode["first_difference"] = f"case {index}: {difference}"
    except (ValueError, KeyError, TypeError) as error:
        cure = "give a JSON list of recorded cases, or one under cases, with S, B, bs, blocks, cost, arrival, P, N, ..."
        detail = f"{path.name} is not a file of recorded scheduler cases: {type(error).__name__}: {error}"
        raise SpecError("verify.file", detail, [FieldError(detail, field="file", cure=cure)]) from error
    return {"modes": modes}
