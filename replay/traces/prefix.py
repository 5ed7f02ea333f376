"""Prefix reuse with a cache that never evicts: the bound on what prefix caching can save."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from replay.traces.cache_sizes import served_tokens
from replay.traces.canonical import Meta
from replay.traces.report import CacheSize, PrefixProfile

Int64Array = npt.NDArray[np.int64]

MAX_CURVE_BLOCKS = 2**22
"""Reuse by cache size is worked out for so many blocks: about 150 bytes each while it is."""


class PrefixReuse:
    """Counts, for requests in arrival order, the leading blocks that an earlier request had. Ids are dense (0..k-1)."""

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        self.seen: npt.NDArray[np.bool_] = np.zeros(1024, dtype=bool)
        self.blocks = 0
        self.reused = 0
        self.reused_tokens = 0
        self.requests = 0
        self._kept: list[tuple[npt.NDArray[np.int32], Int64Array, Int64Array]] = []

    def add(self, frame: pl.DataFrame) -> None:
        """The next slice of the canonical table."""
        rows = frame.filter(pl.col("prefix_blocks").is_not_null())
        if rows.height == 0:
            return
        lengths = rows["prefix_blocks"].list.len().cast(pl.Int64).to_numpy()
        flat = rows["prefix_blocks"].explode(empty_as_null=False, keep_nulls=False).to_numpy()
        owner = np.repeat(np.arange(rows.height, dtype=np.int64), lengths)
        top = int(flat.max()) + 1
        if top > len(self.seen):
            grown = np.zeros(max(top, 2 * len(self.seen)), dtype=bool)
            grown[: len(self.seen)] = self.seen
            self.seen = grown
        first_owner = np.full(top, rows.height, dtype=np.int64)
        first_owner[flat[::-1]] = owner[::-1]  # of equal indices the last assignment stays: the first owner
        known = self.seen[flat] | (first_owner[flat] < owner)
        starts = np.cumsum(lengths) - lengths
        position = np.arange(len(flat), dtype=np.int64) - np.repeat(starts, lengths)
        leading = np.minimum.reduceat(np.where(known, np.repeat(lengths, lengths), position), starts)
        self.seen[flat] = True
        size = self.meta.block_size_tokens or 0
        prompts = rows["prompt_tokens"].fill_null(0).to_numpy()
        self.blocks += int(lengths.sum())
        self.reused += int(leading.sum())
        self.reused_tokens += int(np.minimum(leading * size, prompts).sum())
        self.requests += rows.height
        if self.blocks <= MAX_CURVE_BLOCKS:
            self._kept.append((flat.astype(np.int32), lengths, prompts))
        else:
            self._kept.clear()

    def profile(self, prompt_tokens: int) -> PrefixProfile | None:
        """The document; ``None`` where no request has ids. ``prompt_tokens``: sum over all requests."""
        if self.requests == 0:
            return None
        return PrefixProfile(
            block_size_tokens=self.meta.block_size_tokens or 0,
            scope=self.meta.prefix_scope,
            blocks=self.blocks,
            distinct_blocks=int(np.count_nonzero(self.seen)),
            reused_blocks=self.reused,
            reusable_share_of_prompt_tokens=self.reused_tokens / prompt_tokens if prompt_tokens else 0.0,
            requests_with_blocks=self.requests,
            by_cache_size=self._by_cache_size(prompt_tokens) if self.meta.prefix_scope == "global" else None,
        )

    def _by_cache_size(self, prompt_tokens: int) -> list[CacheSize] | None:
        if not self._kept or self.blocks > MAX_CURVE_BLOCKS or prompt_tokens == 0:
            return None
        ids, lengths, prompts = (np.concatenate(parts).astype(np.int64) for parts in zip(*self._kept, strict=True))
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        curve = served_tokens(ids, start, prompts, self.meta.block_size_tokens or 0, int(np.count_nonzero(self.seen)))
        return [
            CacheSize(blocks=size, tokens=tokens, reused_share_of_prompt_tokens=tokens / prompt_tokens)
            for size, tokens in curve
        ]
