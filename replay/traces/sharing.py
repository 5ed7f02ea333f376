"""Which prompts of a workload begin alike: block ids that the trace gives, or the turns of its sessions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.traces.checks import no_session_prefixes
from replay.workload import PrefixBlocks

Int64Array = npt.NDArray[np.int64]


def prefix_blocks(column: pl.Series, block_tokens: int | None, session: Int64Array | None) -> PrefixBlocks | None:
    """The list column as flat arrays; rows without ids have none; ``None`` where no row has any.

    ``session``: where ids count within a session only, the number of each row's (-1: none, so it shares with no row).
    """
    counts = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    if not block_tokens or counts.sum() == 0:
        return None
    ids = np.array(column.filter(counts > 0).explode().to_numpy(), dtype=np.int64)
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if session is not None:
        alone = session.max(initial=-1) + 1 + np.arange(len(session))
        scope = np.repeat(np.where(session < 0, alone, session), counts)
        pairs = scope * (int(ids.max()) + 1) + ids
        ids = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return PrefixBlocks(start, ids, block_tokens)


def copies_apart(prefix: PrefixBlocks, copy: Int64Array) -> PrefixBlocks:
    """Gives each copy ids of its own: requests share a prefix within a copy, never across."""
    shift = np.repeat(copy, np.diff(prefix.start)) * (int(prefix.ids.max(initial=0)) + 1)
    return PrefixBlocks(prefix.start, prefix.ids + shift, prefix.block_tokens)


def previous_turns(session: Int64Array) -> Int64Array:
    """The request before each in its session (-1: none), for requests in arrival order; sessions are numbers, -1:
    none."""
    order = np.argsort(session, kind="stable")
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    follows = np.full(len(session), -1, np.int64)
    follows[order[1:][same]] = order[:-1][same]
    return follows


def turns_of_sessions(session: Int64Array | None, prefix: PrefixBlocks | None) -> Int64Array:
    """``previous_turns`` where prompts are to be taken as extending each other and the trace allows it.

    Raises:
        TraceError: ``workload.prefix_from_sessions``: no session, or block ids that say it better.
    """
    if session is None or prefix is not None:
        raise no_session_prefixes(has_sessions=session is not None)
    return previous_turns(session)


def sessions_note(prompt_tokens: Int64Array, follows: Int64Array, shared_tokens: Int64Array) -> str:
    """What ``prefix_from_sessions`` took for granted, for the report."""
    turns, share = int((follows >= 0).sum()), shared_tokens.sum() / prompt_tokens.sum()
    return (
        f"Prompt prefixes from sessions, an assumption: each of the {turns:,} requests with an earlier one in its "
        f"session begins with that one's prompt and output. A cache that never evicts would so serve {share:.1%} of "
        "all prompt tokens."
    )
