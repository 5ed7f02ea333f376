"""Prefix reuse: the bound on what prefix caching can save, and what a cache of each size would."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.kernels.stack_distances import BLOCKS, NOW, REUSED, REUSED_TOKENS, SIZES, Uses, use_blocks
from replay.kernels.state import NEVER
from replay.traces.canonical import Meta
from replay.traces.report import CacheSize, PrefixProfile

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

PIECE_BLOCKS = 2**20
"""Of so many block uses the requests are looked at in one go, or of one request."""


class PrefixReuse:
    """Counts, for requests in arrival order, the leading blocks that earlier requests had. Ids are dense (0..k-1)."""

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        self.blocks = 0
        self.requests = 0
        nothing = np.zeros(0, np.int32)
        self._uses = Uses(nothing, nothing, np.zeros(4, np.int64), np.zeros(SIZES, np.int64))

    def add(self, frame: pl.DataFrame) -> None:
        """The next slice of the canonical table."""
        rows = frame.filter(pl.col("prefix_blocks").is_not_null())
        if rows.height == 0:
            return
        lengths = rows["prefix_blocks"].list.len().cast(pl.Int64).to_numpy()
        ids = rows["prefix_blocks"].explode(empty_as_null=False, keep_nulls=False).cast(pl.Int32).to_numpy()
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        prompts = rows["prompt_tokens"].fill_null(0).to_numpy()
        self.blocks += len(ids)
        self.requests += rows.height
        first = 0
        while first < rows.height:
            end = max(int(np.searchsorted(start, start[first] + PIECE_BLOCKS, side="right")) - 1, first + 1)
            piece = ids[start[first] : start[end]]
            self._make_room(piece)
            size = self.meta.block_size_tokens or 0
            use_blocks(self._uses, piece, start[first : end + 1] - start[first], prompts[first:end], size)
            first = end

    def _make_room(self, ids: Int32Array) -> None:
        """For these ids, and for as many instants; those so far are numbered anew where the tree is full."""
        last, marks, counts, _ = self._uses
        known = int(ids.max(initial=-1)) + 1
        if known > len(last):
            last = np.concatenate([last, np.full(max(known, 2 * len(last)) - len(last), NEVER, np.int32)])
        if counts[NOW] + len(ids) >= len(marks):
            used = np.flatnonzero(last != NEVER)
            last[used[np.argsort(last[used])]] = np.arange(1, len(used) + 1, dtype=np.int32)
            counts[NOW] = len(used)
            # A node of a Fenwick tree counts the marks of as many instants up to its own as its lowest bit says.
            instants = np.arange(2 * (len(used) + len(ids)) + 1, dtype=np.int32)
            span = instants & -instants
            marks = np.clip(len(used) - (instants - span), 0, span).astype(np.int32)
        self._uses = self._uses._replace(last=last, marks=marks)

    def profile(self, prompt_tokens: int) -> PrefixProfile | None:
        """The document; ``None`` where no request has ids. ``prompt_tokens``: sum over all requests."""
        if self.requests == 0:
            return None
        counts = self._uses.counts
        return PrefixProfile(
            block_size_tokens=self.meta.block_size_tokens or 0,
            scope=self.meta.prefix_scope,
            blocks=self.blocks,
            distinct_blocks=int(counts[BLOCKS]),
            reused_blocks=int(counts[REUSED]),
            reusable_share_of_prompt_tokens=int(counts[REUSED_TOKENS]) / prompt_tokens if prompt_tokens else 0.0,
            requests_with_blocks=self.requests,
            by_cache_size=self._by_cache_size(prompt_tokens) if self.meta.prefix_scope == "global" else None,
        )

    def _by_cache_size(self, prompt_tokens: int) -> list[CacheSize] | None:
        """Sizes in powers of two up to all different blocks."""
        if prompt_tokens == 0:
            return None
        sizes = max(int(self._uses.counts[BLOCKS]) - 1, 1).bit_length() + 1
        return [
            CacheSize(blocks=2**k, tokens=int(tokens), reused_share_of_prompt_tokens=int(tokens) / prompt_tokens)
            for k, tokens in enumerate(np.cumsum(self._uses.served_tokens)[:sizes])
        ]
