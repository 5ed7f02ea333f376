"""Prompts of a wanted number of tokens that no prefix cache has seen."""

from __future__ import annotations

import random

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business side kind head house service friend father power hour game "
    "line end member law car city name president team minute idea body back parent face level office door health "
    "person art war history party result change morning reason research girl guy moment air teacher force"
)
"""Common words, which most tokenisers know as one token with the space before them."""
_LEAST_ID, _MOST_ID = 1000, 30_000
"""Ordinary tokens in every vocabulary of this size: control tokens come before or after."""


class Prompts:
    """Draws prompts. Two of one object, or of two objects without a seed, do not begin alike."""

    def __init__(self, vocabulary: int, seed: int | None = None) -> None:
        """``vocabulary``: tokens that the model knows. ``seed``: for tests alone."""
        self._random = random.Random(seed)  # noqa: S311 # unlike prompts, no secrets
        self._most = max(2, min(_MOST_ID, vocabulary - vocabulary // 20))
        self._least = min(_LEAST_ID, self._most // 4)
        self._words = _WORDS.split()
        self._tokens_per_word = 1.0
        self._tokens_added = 0.0

    def ids(self, tokens: int) -> list[int]:
        """Exactly ``tokens`` token ids."""
        return self._random.choices(range(self._least, self._most), k=tokens)

    def words(self, tokens: int) -> str:
        """Text of about ``tokens`` tokens, by what ``learn`` was told."""
        count = round((tokens - self._tokens_added) / self._tokens_per_word)
        return " ".join(self._random.choices(self._words, k=max(count, 1)))

    def learn(self, short: tuple[int, int], long: tuple[int, int]) -> None:
        """Takes over how many tokens the server counted for two prompts, each as (asked for, counted)."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        self._tokens_per_word = min(max(per_word, 0.25), 8.0)
        self._tokens_added = short[1] - self._tokens_per_word * short[0]
