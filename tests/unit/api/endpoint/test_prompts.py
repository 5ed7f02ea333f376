"""Prompts have the wanted length, ordinary tokens, and never begin alike."""

from __future__ import annotations

import pytest

from api.endpoint.prompts import Prompts


@pytest.mark.parametrize("vocabulary", [300, 32_000, 151_936])
def test_ids_are_ordinary_tokens_of_the_vocabulary(vocabulary: int) -> None:
    ids = Prompts(vocabulary, seed=1).ids(5_000)
    assert len(ids) == 5_000
    assert min(ids) >= min(1000, vocabulary // 5)
    assert max(ids) < min(30_000, vocabulary)


def test_no_two_prompts_begin_alike() -> None:
    drawn = [tuple(Prompts(32_000).ids(8)) for _ in range(50)]
    one = Prompts(32_000)
    drawn += [tuple(one.ids(8)) for _ in range(50)]
    assert len(set(drawn)) == 100
    assert len({Prompts(32_000).words(12) for _ in range(50)}) == 50


def test_words_come_to_as_many_tokens_as_the_tokeniser_was_seen_to_make() -> None:
    prompts = Prompts(32_000, seed=1)

    def tokens(text: str) -> int:
        return round(1.3 * len(text.split())) + 11

    prompts.learn((32, tokens(prompts.words(32))), (256, tokens(prompts.words(256))))
    for wanted in (64, 1000, 4000):
        assert tokens(prompts.words(wanted)) == pytest.approx(wanted, abs=2)
