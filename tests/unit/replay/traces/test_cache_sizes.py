"""Prefix reuse by cache size against a cache that is played through block by block."""

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.traces.cache_sizes import greater_before, served_tokens


def played(chains: list[list[int]], prompts: list[int], block: int, size: int) -> int:
    """Prompt tokens that an LRU cache of ``size`` blocks serves."""
    cache: OrderedDict[int, None] = OrderedDict()
    tokens = 0
    for chain, prompt in zip(chains, prompts, strict=True):
        for place, one in enumerate(chain):
            if one not in cache:
                break
            tokens += min(block, max(prompt - place * block, 0))
        for one in reversed(chain):
            cache[one] = None
            cache.move_to_end(one)
            if len(cache) > size:
                cache.popitem(last=False)
    return tokens


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=40), st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_every_cache_size_is_as_played(words: list[list[int]], short_of: int) -> None:
    known: dict[tuple[int, ...], int] = {}
    chains = [[known.setdefault(tuple(word[: depth + 1]), len(known)) for depth in range(len(word))] for word in words]
    prompts = [max(16 * len(chain) - short_of + 1, 0) for chain in chains]
    start = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]).astype(np.int64)
    ids = np.array([one for chain in chains for one in chain], np.int64)
    curve = served_tokens(ids, start, np.array(prompts), 16, len(known))
    assert [size for size, _ in curve][-1] >= len(known)
    for size, tokens in curve:
        assert tokens == played(chains, prompts, 16, size)


@given(st.permutations(range(33)))
@settings(max_examples=100, deadline=None)
def test_greater_elements_before(values: list[int]) -> None:
    expected = [sum(earlier > one for earlier in values[:i]) for i, one in enumerate(values)]
    assert greater_before(np.array(values)).tolist() == expected
