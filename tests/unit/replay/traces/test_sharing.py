"""Which prompts begin alike: block ids by scope, and turns of sessions only where they are asked for."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from replay.deployment import resolve_deployment
from replay.errors import SpecError, TraceError
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.texts import link_texts, owner_of, repeat_texts
from replay.simulate import simulate
from replay.specs import DeploymentSpec, Transform
from replay.traces.sharing import prefix_blocks, previous_turns
from replay.traces.transforms import load_workload
from replay.workload import Workload

PS = 10**12


def rows(*turns: tuple[float, str | None, int, int], blocks: bool = False) -> str:
    """Lines in our own format: arrival, session, prompt, output."""
    lines = []
    for arrival_s, session, prompt, output in turns:
        row = {"arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output, "session": session}
        lines.append(json.dumps(row | ({"prefix_blocks": [7]} if blocks else {})) + "\n")
    return "".join(lines)


CHAT = ((0, "a", 100, 20), (1, "b", 50, 5), (30, "a", 150, 10), (31, None, 9, 9), (60, "a", 80, 10), (61, "b", 56, 1))


def test_a_turn_follows_the_last_of_its_session() -> None:
    assert previous_turns(np.array([0, 1, 0, -1, 0, 1, -1])).tolist() == [-1, -1, 0, -1, 2, 1, -1]


def test_sharing_from_sessions_is_an_explicit_choice(lab) -> None:
    lab.read(rows(*CHAT))
    plain = load_workload(lab.out, Transform(), 0)
    assert plain.follows is None
    assert not plain.shares_prompts
    asked = load_workload(lab.out, Transform(prefix_from_sessions=True), 0)
    assert asked.follows is not None
    assert asked.follows.tolist() == [-1, -1, 0, -1, 2, 1]
    # 100 + 20 tokens before the 150 of the second turn; a prompt shorter than the text before is all of it.
    assert asked.reusable_tokens.tolist() == [0, 0, 120, 0, 80, 55]
    assert "Prompt prefixes from sessions, an assumption: each of the 3 requests" in asked.notes[-1]
    assert f"{255 / 445:.1%}" in asked.notes[-1]


def test_a_window_starts_cold_and_copies_share_nothing(lab) -> None:
    lab.read(rows(*CHAT))
    cut = load_workload(lab.out, Transform(prefix_from_sessions=True, window_start_s=20), 0)
    assert cut.follows is not None
    assert cut.follows.tolist() == [-1, -1, 0, -1]
    grown = load_workload(lab.out, Transform(prefix_from_sessions=True, growth=2), 0)
    assert grown.follows is not None
    assert (grown.follows >= 0).sum() == 6
    assert (np.unique(grown.follows[grown.follows >= 0], return_counts=True)[1] == 1).all()


@pytest.mark.parametrize(
    ("turns", "blocks", "words"),
    [(((0, None, 5, 5), (1, None, 5, 5)), False, "needs sessions"), (CHAT, True, "by block ids")],
)
def test_what_sessions_cannot_say_is_refused_with_a_cure(lab, turns: tuple, blocks: bool, words: str) -> None:
    options = {"block_size": 1000} if blocks else {}
    lab.read(rows(*turns, blocks=blocks), **options)
    with pytest.raises(TraceError, match=words) as caught:
        load_workload(lab.out, Transform(prefix_from_sessions=True), 0)
    assert caught.value.code == "workload.prefix_from_sessions"
    assert caught.value.errors[0].field == "transform.prefix_from_sessions"
    assert caught.value.errors[0].cure


def test_ids_that_count_within_a_session_are_shared_there_only() -> None:
    column = pl.Series([[0, 1], [0, 1], [0, 2], None, [0]], dtype=pl.List(pl.Int64))
    everywhere = prefix_blocks(column, 64, None)
    assert everywhere is not None
    assert everywhere.ids.tolist() == [0, 1, 0, 1, 0, 2, 0]
    within = prefix_blocks(column, 64, np.array([4, 9, 4, 9, -1]))
    assert within is not None
    assert within.start.tolist() == [0, 2, 4, 6, 6, 7]
    a, b, c, d, e, f, g = within.ids.tolist()
    assert (a, len({a, b, c, d, f, g})) == (e, 6)
    assert within.reusable_tokens.tolist() == [0, 0, 64, 0, 0]


def test_owners_of_tokens_are_those_of_a_walk_up_the_chain() -> None:
    rng = np.random.default_rng(3)
    n = 400
    follows = np.array([-1 if k % 50 == 0 else k - 1 - int(rng.integers(0, min(3, k % 50))) for k in range(n)])
    shared = rng.integers(1, 60, n)
    texts = link_texts(follows, shared, np.arange(n))
    for k in range(n):
        for position in (0, 5, 17, 30, 59, 200):
            owner = k
            while follows[owner] >= 0 and position < shared[owner]:
                owner = int(follows[owner])
            assert owner_of(texts, k, position) == owner
    twice = repeat_texts(texts, 2)
    assert owner_of(twice, n + 7, 0) == n + owner_of(texts, 7, 0)


def chat(turns: int, sessions: int, gap_s: float) -> Workload:
    """Sessions that grow by 60 prompt and 40 output tokens a turn."""
    k, s = np.divmod(np.arange(turns * sessions), sessions)
    arrival = k * round(gap_s * PS) + s * PS // 100
    return Workload(arrival, 100 * k + 60, np.full(len(k), 40), turns * gap_s, follows=previous_turns(s))


def deployed(router: str = "round_robin", replicas: int = 1, **knobs: int | bool):
    catalogue = shipped_catalogue()
    model, gpu = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
    engine = {"preset": "vllm-0.33", "overrides": knobs}
    spec = {"model": model, "gpu": gpu, "router": router, "replicas": replicas, "engine": engine}
    return resolve_deployment(DeploymentSpec.model_validate(spec), catalogue.model(model), catalogue.gpu(gpu))


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_turn_hits_prompt_and_output_of_the_turn_before_in_whole_blocks(block_size: int) -> None:
    """The last output token's KV is never written, so a turn finds the 100 k - 1 tokens before it."""
    load = chat(turns=5, sessions=4, gap_s=20.0)
    result = simulate(load, deployed(block_size=block_size))
    k = np.arange(20) // 4
    assert result.requests.hit_tokens.tolist() == np.where(k, (100 * k - 1) // block_size * block_size, 0).tolist()
    off = simulate(load, deployed(enable_prefix_caching=False))
    assert off.prefix_hit_rate is None
    assert result.ttft_s[4:].mean() < off.ttft_s[4:].mean()


def test_sessions_spread_over_replicas_lose_their_cache() -> None:
    """Round robin over three replicas sends a session of four from one to the next; affinity keeps it."""
    load = chat(turns=6, sessions=4, gap_s=20.0)
    load = Workload(**{**load.__dict__, "session": np.arange(24) % 4})
    kept = simulate(load, deployed("session_affinity", 3)).prefix_hit_rate
    spread = simulate(load, deployed("round_robin", 3)).prefix_hit_rate
    assert kept is not None
    assert spread is not None
    assert spread < 0.7 * kept


def test_the_prefix_aware_router_points_to_affinity() -> None:
    with pytest.raises(SpecError) as caught:
        simulate(chat(2, 2, 1.0), deployed("prefix_aware", 2))
    assert "session_affinity" in (caught.value.errors[0].cure or "")
