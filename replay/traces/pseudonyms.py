"""Stand-ins for what names a person or a customer: keyed labels for ids, and the bare shape of rejected cells.

The key is the installation's own; without it a label cannot be traced back, nor made from a guessed name.
"""

from __future__ import annotations

import re

import polars as pl

from replay.errors import SpecError
from replay.traces.labels import PREFIXES, is_label, label

SHOWN_CHARACTERS = 40
_ONE_WORD = re.compile(r"\S+|\d[\d:./+-]*[ T]\d[\d:.,]*(?: ?[+-]\d\d:?\d\d| ?UTC)?")
_PLAIN_WORDS = {"nan", "inf", "-inf", "infinity", "-infinity", "true", "false", "null", "none", "undefined"}


class Pseudonyms:
    """Replaces tenants and sessions by labels: the same id gives the same label for the same ``key``.

    ``found`` are the columns in which any id was replaced. Formats tell sessions apart before, by their real ids.
    ``labels_stay``: what looks like a label is one, made when the trace was first read.
    """

    def __init__(self, key: bytes, *, labels_stay: bool = False) -> None:
        self._key = key
        self._labels_stay = labels_stay
        self.found: set[str] = set()

    def replace(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with labels in place of the ids."""
        for column in PREFIXES:
            if column not in frame.columns:
                continue
            ids = frame[column].cast(pl.String)
            names = ids.drop_nulls().unique()
            if len(names) == 0:
                continue
            self.found.add(column)
            labels = pl.Series([self._label(column, name) for name in names], dtype=pl.String)
            frame = frame.with_columns(
                ids.replace_strict(names, labels, default=None, return_dtype=pl.String).alias(column)
            )
        return frame

    def _label(self, column: str, name: str) -> str:
        return name if self._labels_stay and is_label(name) else label(self._key, column, name)


def key_needed() -> SpecError:
    """For ``ids=hash`` where the caller has no key."""
    return SpecError("ids.key", "ids=hash needs the installation's key: set CAPREPLAY_SECRET_KEY, or give ids=keep")


def shown(text: str, *, hidden: bool) -> str:
    """What a message may say of a rejected cell, quoted: the cell where it is one word or a time, else its shape.

    A shape has ``9`` for each digit and ``a`` or ``A`` for each letter: enough to see a comma for a point or a cell in
    the wrong place, and nothing of a prompt. With ``hidden`` (ids are replaced) numbers and words are shapes, too.
    """
    cut = text[:SHOWN_CHARACTERS] + ("..." if len(text) > SHOWN_CHARACTERS else "")
    whole = len(text) <= SHOWN_CHARACTERS and _ONE_WORD.fullmatch(text) is not None
    if (whole and not hidden) or text.strip().lower() in _PLAIN_WORDS:
        return repr(cut)
    return repr("".join(_shape(character) for character in cut))


def _shape(character: str) -> str:
    if character.isdigit():
        return "9"
    if character.isalpha():
        return "A" if character.isupper() else "a"
    return character if character.isprintable() else "?"
