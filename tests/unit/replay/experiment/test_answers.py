"""Token times -> steps: the batch, the context and the time of each are right, and answers of no use are named."""

from __future__ import annotations

import numpy as np
import pytest

from replay.experiment.answers import Answer, UnusableAnswersError, rows_of
from replay.experiment.plan import Part

STEP_S = 0.01


def answer(first_s: float, tokens: int, *, prompt: int = 100, step_s: float = STEP_S, cached: int = 0) -> Answer:
    """One token a step from ``first_s`` on."""
    times = first_s + step_s * np.arange(tokens)
    return Answer(0.0, times, np.arange(1, tokens + 1), prompt, cached)


def decode(requests: int) -> Part:
    return Part("decode", requests, 100, 50)


def test_the_first_token_is_of_the_part_of_the_prompt_that_was_not_cached() -> None:
    (row,) = rows_of(Part("single", 1, 100, 1), [answer(0.25, 1, cached=64)])
    assert row.columns() == {
        "kind": "ttft",
        "prefill_tokens": 36,
        "cached_tokens": 64,
        "decode_requests": 0,
        "decode_context_tokens": 0,
        "time_s": 0.25,
    }


def test_steps_count_from_the_first_token_of_the_last_request() -> None:
    """The first answer has 5 tokens more when the second begins."""
    early, late = answer(0.1, 40), answer(0.15, 33)
    rows = rows_of(decode(2), [early, late])
    assert [row.decode_requests for row in rows] == [2, 2]
    assert [row.time_s for row in rows] == pytest.approx([STEP_S, STEP_S])
    # 32 steps: the decode of output token j reads prompt + j - 1 tokens and its own; means of steps 1..16 and 17..32
    contexts = [sum(100 + 5 + k + 100 + k for k in steps) / 16 for steps in (range(1, 17), range(17, 33))]
    assert [row.decode_context_tokens for row in rows] == [round(one) for one in contexts]


def test_a_step_that_takes_longer_with_the_context_is_seen_to() -> None:
    times = 1.0 + np.cumsum(0.01 + 1e-4 * np.arange(33))
    rows = rows_of(decode(1), [Answer(0.0, times, np.arange(1, 34), 100)])
    slope = (rows[1].time_s - rows[0].time_s) / (rows[1].decode_context_tokens - rows[0].decode_context_tokens)
    assert slope == pytest.approx(1e-4, rel=1e-6)


def test_now_and_then_two_tokens_in_a_chunk_change_nothing() -> None:
    tokens = np.array([1, 2, 3, 5, *range(6, 41)])
    whole = answer(0.1, 40)
    merged = Answer(0.0, whole.times_s[tokens - 1], tokens, 100)
    (row, _) = rows_of(decode(3), [answer(0.1, 40), merged, whole])
    assert row.time_s == pytest.approx(STEP_S)


def mixed(joined_at: int, *, before: int = 0) -> tuple[list[Answer], list[Answer]]:
    """Four decodes; step ``joined_at`` takes 5 times as long, and the ``before`` steps before it too."""
    gaps = np.full(40, STEP_S)
    gaps[joined_at - before : joined_at + 1] = 5 * STEP_S
    times = 0.1 + np.cumsum(gaps)
    decodes = [Answer(0.0, times, np.arange(1, 41), 100) for _ in range(4)]
    return decodes, [Answer(times[joined_at] - 5 * STEP_S, times[joined_at : joined_at + 1], np.array([1]), 500)]


MIXED = Part("mixed", 4, 100, 40, added=1, added_tokens=500)


def test_a_prompt_that_joins_is_one_step_with_the_decodes() -> None:
    (row,) = rows_of(MIXED, *mixed(20))
    assert (row.kind, row.prefill_tokens, row.decode_requests) == ("step", 500, 4)
    assert row.time_s == pytest.approx(5 * STEP_S)
    assert row.decode_context_tokens == 4 * (100 + 20)


def test_a_prompt_in_several_steps_is_no_row() -> None:
    with pytest.raises(UnusableAnswersError, match="computed in several steps; give max_num_batched_tokens"):
        rows_of(MIXED, *mixed(20, before=2))


def test_several_servers_behind_one_address_are_noticed() -> None:
    decodes, added = mixed(20)
    steady = [answer(0.11, 44), answer(0.11, 44)]
    with pytest.raises(UnusableAnswersError, match="several servers") as refused:
        rows_of(MIXED, [*decodes[:2], *steady], added)
    assert refused.value.everywhere


def in_bursts(tokens: int, size: int) -> Answer:
    times = 0.1 + STEP_S * size * (np.arange(tokens) // size)
    return Answer(0.0, times + 1e-5 * np.arange(tokens), np.arange(1, tokens + 1), 100)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([answer(0.1, 5), answer(0.1, 50)], "only 4 steps had all 2 requests decoding"),
        ([answer(0.1, 20), answer(5.0, 20)], "max_num_seqs"),
        ([Answer(0.0, np.array([0.5]), np.array([50]), 100)], "in one chunk"),
        ([Answer(0.0, np.array([0.1, 0.2, 0.3]), np.array([4, 8, 12]), 100)], "4 output tokens per streamed chunk"),
        ([answer(2.0, 50, step_s=1e-5)], "at once after a long wait"),
        ([in_bursts(60, 10)], "in bursts"),
    ],
)
def test_answers_of_no_use_are_named(answers: list[Answer], said: str) -> None:
    with pytest.raises(UnusableAnswersError) as refused:
        rows_of(decode(len(answers)), answers)
    assert said in str(refused.value)
    assert refused.value.cure
