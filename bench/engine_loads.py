"""Loads of the engine's bench: chat, and sessions whose turns extend each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replay.closed_loop import ClosedLoop
from replay.traces.sharing import previous_turns
from replay.workload import PrefixBlocks, Workload

PROMPT_MEAN, OUTPUT_MEAN, SIGMA = 512, 256, 0.8
TURNS, TURN_TOKENS, BLOCK_TOKENS = 8, 512, 64
READERS, DOCUMENT_TOKENS = 16, 32_768
PS_PER_S = 1e12


def chat(n: int, rate_rps: float, seed: int = 1) -> Workload:
    """``n`` Poisson requests at ``rate_rps`` with lognormal lengths, mean 512 in and 256 out."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, n))
    shift = SIGMA**2 / 2
    prompt = np.clip(rng.lognormal(np.log(PROMPT_MEAN) - shift, SIGMA, n), 1, 16_384)
    output = np.clip(rng.lognormal(np.log(OUTPUT_MEAN) - shift, SIGMA, n), 1, 8_192)
    arrival_ps = ((arrival_s - arrival_s[0]) * PS_PER_S).astype(np.int64)
    return Workload(arrival_ps, prompt.astype(np.int64), output.astype(np.int64), float(arrival_s[-1] - arrival_s[0]))


def turns(n: int, rate_rps: float, seed: int = 1) -> Workload:
    """Chat in sessions of 8 turns a minute apart; each prompt is 512 tokens longer than the one before."""
    load = chat(n, rate_rps, seed)
    sessions = -(-n // TURNS)
    start_s = np.random.default_rng(seed).uniform(0, max(n / rate_rps, 1.0), sessions)
    session, turn = np.repeat(np.arange(sessions), TURNS)[:n], np.tile(np.arange(TURNS), sessions)[:n]
    at_ps = ((start_s[session] + 60.0 * turn) * PS_PER_S).astype(np.int64)
    order = np.argsort(at_ps, kind="stable")
    at_ps = at_ps[order] - at_ps.min()
    prompt = TURN_TOKENS * (turn + 1)
    return Workload(at_ps, prompt[order], load.output_tokens, float(at_ps[-1]) / PS_PER_S, session=session[order])


def turns_as_texts(n: int, rate_rps: float) -> Workload:
    """The same, for a prefix cache that knows turns alone."""
    load = turns(n, rate_rps)
    assert load.session is not None
    return replace(load, follows=previous_turns(load.session))


def turns_as_blocks(n: int, rate_rps: float) -> Workload:
    """The same, with block ids of 64 tokens: those of a session are ``1000 * session + place``."""
    load = turns(n, rate_rps)
    assert load.session is not None
    counts = load.prompt_tokens // BLOCK_TOKENS
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    place = np.arange(start[-1]) - np.repeat(start[:-1], counts)
    ids = np.repeat(load.session, counts) * 1000 + place
    return replace(load, prefix=PrefixBlocks(start, ids, BLOCK_TOKENS))


def documents_in_a_rush(n: int, rate_rps: float) -> Workload:
    """Questions of 512 tokens on average about documents of 32,768, sixteen in a row to a document, with
    answers of 1,024, at twice the rate: the queue's head nearly always waits for memory."""
    load = chat(n, 2 * rate_rps)
    counts = np.full(n, DOCUMENT_TOKENS // BLOCK_TOKENS)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    ids = (np.arange(n)[:, None] // READERS * counts[0] + np.arange(counts[0])).reshape(-1)
    return replace(
        load,
        prompt_tokens=DOCUMENT_TOKENS + load.prompt_tokens,
        output_tokens=4 * load.output_tokens,
        prefix=PrefixBlocks(start, ids, BLOCK_TOKENS),
    )


def turns_in_a_closed_loop(n: int, rate_rps: float) -> Workload:
    """The same, each turn sent 10 s after the last answer."""
    load = turns(n, rate_rps)
    assert load.session is not None
    after = previous_turns(load.session)
    follows = after >= 0
    at_ps = load.arrival_ps.copy()
    for i in np.flatnonzero(follows):
        at_ps[i] = at_ps[after[i]] + 10 * 10**12
    order = np.argsort(at_ps, kind="stable")
    place = np.argsort(order)
    before = after[order]
    return replace(
        load,
        arrival_ps=at_ps[order],
        prompt_tokens=load.prompt_tokens[order],
        output_tokens=load.output_tokens[order],
        session=load.session[order],
        closed_loop=ClosedLoop(np.where(before >= 0, place[before], -1), np.where(before >= 0, 10 * 10**12, 0)),
    )
