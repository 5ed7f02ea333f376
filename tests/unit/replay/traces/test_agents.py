"""Agentic depth: chains of calls whose prompts hold the calls before them."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from replay.closed_loop import unroll
from replay.specs import Transform
from replay.traces.transforms import load_workload

PS = 10**12
DEEP = Transform(agent_steps=3, agent_pause_s=0.7, agent_step_tokens=11)


def test_each_request_is_a_chain_of_growing_prompts(lab) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 1000 * (i + 1), "output_tokens": 5 + i} for i in range(10)]
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    workload = load_workload(lab.out, DEEP, 0)
    loop = workload.closed_loop
    assert loop is not None
    assert (workload.n, loop.sessions) == (30, 10)
    assert (np.diff(workload.arrival_ps) >= 0).all()
    chain = unroll(loop.after, loop.delay_ps)
    for i, root in enumerate(np.flatnonzero(loop.after < 0)):
        calls = np.flatnonzero(chain.root == root)
        calls = calls[np.argsort(chain.depth[calls])]
        assert workload.prompt_tokens[calls].tolist() == [1000 * (i + 1) + j * (5 + i + 11) for j in range(3)]
        assert workload.output_tokens[calls].tolist() == [5 + i] * 3
        assert workload.arrival_ps[calls].tolist() == [i * PS + j * 7 * PS // 10 for j in range(3)]
        assert workload.session is not None
        assert len(set(workload.session[calls].tolist())) == 1
    assert len(set(workload.session.tolist())) == 10
    assert workload.notes[0].startswith("Agentic depth 3: each of 10 requests is a chain of 3 calls, each sent 0.7 s")
    assert "share no prefix" in workload.notes[0]


def test_what_followed_a_request_follows_its_last_call(lab) -> None:
    lab.read(
        '{"timestamp": 0, "session_id": "s", "input_length": 600, "output_length": 500, "hash_ids": [1, 2]}\n'
        '{"delay": 900, "session_id": "s", "input_length": 1100, "output_length": 5, "hash_ids": [1, 3, 4]}\n'
    )
    workload = load_workload(lab.out, DEEP, 0)
    assert workload.closed_loop is not None
    assert workload.closed_loop.after.tolist() == [-1, 0, 1, 2, 3, 4]
    assert (workload.closed_loop.delay_ps / PS).tolist() == [0, 0.7, 0.7, 0.9, 0.7, 0.7]
    assert (workload.arrival_ps / PS).tolist() == pytest.approx([0, 0.7, 1.4, 2.3, 3.0, 3.7])


def test_calls_of_a_chain_share_their_text(lab) -> None:
    rows = [
        {"arrival_s": i, "prompt_tokens": 40, "output_tokens": 21, "prefix_blocks": [0, 1, 2 + i]} for i in range(3)
    ]
    lab.read("".join(json.dumps(row) + "\n" for row in rows), block_size=16)
    workload = load_workload(lab.out, Transform(agent_steps=3), 0)
    assert workload.prefix is not None
    counts = np.diff(workload.prefix.start)
    assert workload.closed_loop is not None
    depth = unroll(workload.closed_loop.after, workload.closed_loop.delay_ps).depth
    assert [sorted(counts[depth == j].tolist()) for j in range(3)] == [[3] * 3, [61 // 16] * 3, [82 // 16] * 3]
    reusable = workload.prefix.reusable_tokens
    # The first request's first call: nothing. The others' first calls: the two blocks that all share.
    assert sorted(reusable[depth == 0].tolist()) == [0, 32, 32]
    assert set(reusable[depth == 1].tolist()) == {32}, "the half full third block of the first call is another text"
    assert set(reusable[depth == 2].tolist()) == {48}


def test_steps_are_needed() -> None:
    with pytest.raises(ValidationError, match="give 2 or more"):
        Transform(agent_pause_s=3)
