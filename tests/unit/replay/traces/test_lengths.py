"""Lengths of a what-if: exact, never below a token, never raised by a cap; prefixes go along."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.traces.lengths import fit_blocks, infer_outputs, reshape, reshape_note, scale_sharing
from replay.workload import PrefixBlocks


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=50),
    st.floats(0.01, 100),
    st.integers(-1000, 1000),
    st.one_of(st.none(), st.integers(1, 10**5)),
)
@settings(max_examples=150, deadline=None)
def test_lengths_are_scaled_shifted_and_capped(lengths: list[int], scale: float, shift: int, cap: int | None) -> None:
    tokens = np.array(lengths, np.int64)
    out = reshape(tokens, scale, shift, cap)
    for one, new in zip(lengths, out.tolist(), strict=True):
        wanted = max(int(np.floor(one * scale + 0.5)) + shift, 1)
        assert new == (wanted if cap is None else min(wanted, cap))
    assert (reshape(tokens, 1.0, 0, cap) <= tokens).all(), "a cap never raises"
    assert out.min() >= 1


def test_the_note_counts_what_was_bounded() -> None:
    tokens = np.array([1, 10, 100, 1000])
    out = reshape(tokens, 2.0, -30, 500)
    assert out.tolist() == [1, 1, 170, 500]
    note = reshape_note("Prompt", tokens, out, 2.0, -30, 500)
    assert note == (
        "Prompt tokens times 2, minus 30 tokens, capped at 500 tokens: the mean is 168 tokens, it was 277.75; "
        "1 of 4 requests reach the cap; 2 would have fallen below 1 token and have 1."
    )


def test_blocks_follow_the_prompt() -> None:
    prefix = PrefixBlocks(np.array([0, 3, 3, 5]), np.array([0, 1, 2, 0, 3]), 16)
    before = np.array([40, 10, 32])
    cut = fit_blocks(prefix, before, np.array([17, 5, 32]))
    assert cut.start.tolist() == [0, 2, 2, 4]
    assert cut.ids.tolist() == [0, 1, 0, 3]
    longer = fit_blocks(prefix, before, np.array([41, 10, 64]))
    assert longer.start.tolist() == [0, 2, 2, 4], "40 tokens fill two blocks; the third would now hold other text"
    assert longer.ids.tolist() == [0, 1, 0, 3]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_sharing_is_scaled_to_the_share_asked(share: float) -> None:
    rng = np.random.default_rng(3)
    chains = [
        [int(tree), *(1000 * int(tree) + 100 + np.arange(rng.integers(0, 6)))] for tree in rng.integers(0, 9, 600)
    ]
    counts = [len(chain) for chain in chains]
    prefix = PrefixBlocks(np.concatenate([[0], np.cumsum(counts)]), np.concatenate(chains).astype(np.int64), 16)
    scaled, note = scale_sharing(prefix, share, 5)
    assert scaled.reusable_tokens.sum() == pytest.approx(share * prefix.reusable_tokens.sum(), abs=16 * 6 * 3)
    assert (scaled.reusable_tokens <= prefix.reusable_tokens).all()
    again, _ = scale_sharing(prefix, share, 5)
    assert again.ids.tobytes() == scaled.ids.tobytes()
    if share == 1.0:
        assert scaled.ids.tobytes() == prefix.ids.tobytes()
    assert f"Prefix sharing times {share:g}" in note


def test_unknown_outputs_come_from_prompts_of_about_their_length() -> None:
    prompt = np.arange(1, 1001)
    output = 10 * prompt
    output[::7] = 0
    inferred = infer_outputs(prompt, output, 1)
    known = output > 0
    assert (inferred[known] == output[known]).all()
    assert (np.abs(inferred[~known] - 10 * prompt[~known]) <= 10 * 40).all()
    assert (inferred == infer_outputs(prompt, output, 1)).all()
    assert (inferred != infer_outputs(prompt, output, 2)).any()
