"""Prefix reuse by cache size against a cache that is played through block by block."""

from collections import OrderedDict
from collections.abc import Callable

import polars as pl
import pytest
from engines import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.traces import prefix
from replay.traces.canonical import Meta
from replay.traces.prefix import PrefixReuse


def played(prompts: list[tuple[list[int], int]], block: int, size: int) -> tuple[int, int]:
    """Blocks and prompt tokens that an LRU cache of ``size`` blocks serves."""
    cache: OrderedDict[int, None] = OrderedDict()
    blocks = tokens = 0
    for ids, prompt in prompts:
        for place, one in enumerate(ids):
            if one not in cache:
                break
            blocks += 1
            tokens += min(block, max(prompt - place * block, 0))
        for one in reversed(ids):
            cache[one] = None
            cache.move_to_end(one)
            if len(cache) > size:
                cache.popitem(last=False)
    return blocks, tokens


def chained(words: list[list[int]]) -> list[list[int]]:
    """Ids that are equal where all before them are."""
    known: dict[tuple[int, ...], int] = {}
    return [[known.setdefault(tuple(word[: depth + 1]), len(known)) for depth in range(len(word))] for word in words]


def unchained(words: list[list[int]]) -> list[list[int]]:
    """Ids as they come, each once in a prompt, numbered from 0."""
    known: dict[int, int] = {}
    return [[known.setdefault(one, len(known)) for one in dict.fromkeys(word)] for word in words]


@pytest.mark.parametrize("ids_of", [chained, unchained])
@pytest.mark.parametrize("piece_blocks", [1, 7, 2**20])
@given(
    words=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=40),
    short_of=st.integers(0, 40),
    slices=st.integers(1, 4),
)
@settings(max_examples=cases(300) // 6, deadline=None)
def test_every_cache_size_is_as_played(
    ids_of: Callable[[list[list[int]]], list[list[int]]],
    piece_blocks: int,
    words: list[list[int]],
    short_of: int,
    slices: int,
) -> None:
    all_ids = ids_of(words)
    prompts = [(ids, max(16 * len(ids) - short_of, 0)) for ids in all_ids]
    reuse = PrefixReuse(Meta(block_size_tokens=16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "PIECE_BLOCKS", piece_blocks)
        for first in range(slices):
            part = prompts[first * len(prompts) // slices : (first + 1) * len(prompts) // slices]
            reuse.add(
                pl.DataFrame(
                    {"prefix_blocks": [ids for ids, _ in part], "prompt_tokens": [tokens for _, tokens in part]},
                    schema={"prefix_blocks": pl.List(pl.Int64), "prompt_tokens": pl.Int64},
                )
            )
    total = sum(tokens for _, tokens in prompts)
    profile = reuse.profile(total)
    assert profile is not None
    distinct = len({one for ids in all_ids for one in ids})
    assert (profile.blocks, profile.distinct_blocks) == (sum(map(len, all_ids)), distinct)
    blocks, tokens = played(prompts, 16, max(distinct, 1))
    assert profile.reused_blocks == blocks
    assert profile.reusable_share_of_prompt_tokens == (tokens / total if total else 0)
    if total == 0:
        assert profile.by_cache_size is None
        return
    assert profile.by_cache_size is not None
    assert profile.by_cache_size[-1].blocks >= distinct
    for size in profile.by_cache_size:
        assert size.tokens == played(prompts, 16, size.blocks)[1]
