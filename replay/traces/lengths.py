"""Lengths of a what-if: scaled, shifted, capped; outputs that the trace does not know; prefixes that go with them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.workload import PrefixBlocks

Int64Array = npt.NDArray[np.int64]

_NEIGHBOURS = 16
"""An unknown output is drawn from so many requests with shorter prompts and so many with longer ones."""


def reshape(tokens: Int64Array, scale: float, shift: int, cap: int | None) -> Int64Array:
    """``min(cap, max(1, round(scale * tokens) + shift))``, halves rounded up. A cap never raises a length."""
    out: Int64Array = np.floor(tokens * scale + 0.5).astype(np.int64) if scale != 1.0 else tokens.astype(np.int64)
    out = np.maximum(out + shift, 1)
    return out if cap is None else np.minimum(out, np.int64(cap))


def reshape_note(name: str, before: Int64Array, after: Int64Array, scale: float, shift: int, cap: int | None) -> str:
    """What was done to the lengths called ``name``, for the report."""
    steps = [f"times {scale:g}"] if scale != 1.0 else []
    steps += [f"{'plus' if shift > 0 else 'minus'} {abs(shift):,} tokens"] if shift else []
    steps += [f"capped at {cap:,} tokens"] if cap is not None else []
    rounded = np.floor(before * scale + 0.5) + shift
    facts = f"the mean is {after.mean():,.5g} tokens, it was {before.mean():,.5g}"
    if cap is not None:
        facts += f"; {int((np.maximum(rounded, 1) > cap).sum()):,} of {len(before):,} requests reach the cap"
    low = int((rounded < 1).sum())
    if low:
        facts += f"; {low:,} would have fallen below 1 token and have 1"
    return f"{name} tokens {', '.join(steps)}: {facts}."


def fit_blocks(prefix: PrefixBlocks, before: Int64Array, after: Int64Array) -> PrefixBlocks:
    """Block ids for prompts of ``after`` tokens that had ``before``: a shorter prompt loses its last blocks; a longer
    one keeps its full blocks and goes on with text of its own, which it shares with nobody."""
    counts = np.diff(prefix.start)
    size = prefix.block_tokens
    shorter = np.minimum(counts, -(-after // size))
    keep = np.where(after > before, np.minimum(counts, before // size), shorter)
    place = np.arange(len(prefix.ids), dtype=np.int64) - np.repeat(prefix.start[:-1], counts)
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    return PrefixBlocks(start, prefix.ids[place < np.repeat(keep, counts)], size)


def scale_sharing(prefix: PrefixBlocks, share: float, seed: int) -> tuple[PrefixBlocks, str]:
    """Makes a drawn part of the requests share nothing, so many that ``share`` of the reusable blocks is left.

    Reusable are the leading blocks that an endless cache would have from earlier requests. Requests drop out in a
    seeded order; each that does leaves fewer, so the number that comes nearest is found by halving.
    """
    counts = np.diff(prefix.start)
    n = len(counts)
    owner = np.repeat(np.arange(n, dtype=np.int64), counts)
    place = np.arange(len(owner), dtype=np.int64) - np.repeat(prefix.start[:-1], counts)
    by_id = np.argsort(prefix.ids, kind="stable")
    first = np.flatnonzero(np.diff(prefix.ids[by_id], prepend=-1))
    group = np.empty(len(owner), np.int64)
    group[by_id] = np.repeat(np.arange(len(first)), np.diff(first, append=len(owner)))
    rank = np.random.Generator(np.random.PCG64([seed, 2])).permutation(n)

    def reusable(dropped: int) -> int:
        holder = np.where(rank[owner] >= dropped, owner, n)
        earliest = np.minimum.reduceat(holder[by_id], first) if len(first) else holder
        new = earliest[group] >= holder
        leading = counts.copy()
        np.minimum.at(leading, owner[new], place[new])
        return int(leading[rank >= dropped].sum())

    whole = reusable(0)
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if reusable(middle) <= share * whole:
            high = middle
        else:
            low = middle + 1
    if low > 0 and abs(reusable(low - 1) - share * whole) < abs(reusable(low) - share * whole):
        low -= 1
    apart = rank[owner] < low
    ids = prefix.ids.copy()
    ids[apart] = int(prefix.ids.max(initial=-1)) + 1 + np.arange(int(apart.sum()))
    note = (
        f"Prefix sharing times {share:g}: {low:,} of {n:,} requests (seed {seed}) share nothing any more; an endless "
        f"cache would have {reusable(low):,} leading blocks of the others from before, it had {whole:,}."
    )
    return PrefixBlocks(prefix.start, ids, prefix.block_tokens), note


def infer_outputs(prompt: Int64Array, output: Int64Array, seed: int) -> Int64Array:
    """Outputs with those below 1 drawn from requests with prompts of about the same length (32 at most, by rank)."""
    known = output >= 1
    order = np.argsort(prompt[known], kind="stable")
    prompts, outputs = prompt[known][order], output[known][order]
    at = np.searchsorted(prompts, prompt[~known])
    low = np.maximum(at - _NEIGHBOURS, 0)
    high = np.minimum(at + _NEIGHBOURS, len(prompts))
    rng = np.random.Generator(np.random.PCG64([seed, 3]))
    out = output.copy()
    out[~known] = outputs[rng.integers(low, high)]
    return out
