"""Whether a prompt count includes the cached tokens, and an output count the reasoning ones. Settled, or asked.

OpenAI's shape includes both; Anthropic's and Bedrock's prompt counts exclude what was read from or written to a cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from replay.errors import FieldError, TraceError, curable
from replay.traces import casts
from replay.traces.cleaning import Ledger
from replay.traces.options import IngestOptions, MappedField
from replay.traces.rows import Sample
from replay.traces.words import leaf, snake

EXCLUDED = re.compile(
    r"^(?:input_)?cache_?(?:read|creation|write)_?(?:input)?_?(?:tokens?)?(?:_?count)?$|^cache_n$", re.IGNORECASE
)
_INCLUDED = re.compile(r"(?:^|\.)(?:prompt|input)_tokens?_details\.cached_tokens$|^input_cached_tokens$", re.IGNORECASE)
_UNCACHED = re.compile(
    r"(?:^|_)(?:un_?cached|non_?cached|not_cached|cache_miss|(?:new|fresh)_(?:input|prompt|tok\w*)|prompt_n$)(?:_|$)"
)
"""Names of a prompt count without what came from a cache; ``prompt_n`` is llama.cpp's, beside ``cache_n``."""
_CACHE = re.compile(r"cache")
_NO_COUNT = re.compile(
    r"(?:^|_)(?:key|id|hash|ttl|cost|price|usd|spend|rate|ratio|share|pct|percent|m?s|seconds|time|duration|hits|size|usage|"
    r"capacity|blocks?|kv|gpu|cpu|budget|max|limit|effort|level)(?:_|$)"
)
"""Words in names of columns that are about a cache or reasoning and count no tokens of a request."""
_REASONING = re.compile(r"(?:^|_)(?:reasoning|thinking|thoughts?)(?:_|$)")
_THOUGHTS = re.compile(r"(?:^|_)thoughts?_tokens?_count$")
"""Gemini's name: beside the candidates, never inside."""
_TOTAL = re.compile(r"^(?:num_)?total(?:_?(?:tokens?|toks?)(?:_?count)?)?$|^tokens_total$")
_CLEAR_SHARE = 0.95
_LARGER_SHARE = 0.2


def total_column(columns: tuple[str, ...], prompt: str | None) -> str | None:
    """The column of total tokens that stands beside ``prompt``, if any."""
    if prompt is None:
        return None
    parent = prompt.rpartition(".")[0]
    for column in columns:
        where, _, name = column.rpartition(".")
        if where == parent and _TOTAL.match(snake(name)):
            return column
    return None


@dataclass
class TokenShape:
    """How one table counts. ``cached_inside`` stays ``None`` until a format, the user, a name or the numbers say."""

    options: IngestOptions
    ledger: Ledger
    cached_column: str | None = None
    total: str | None = None
    cached_inside: bool | None = None
    cached_by_row: bool = False
    """Whether some rows count one way and some the other, each with a total that shows it."""
    reasoning_inside: bool | None = None
    prompt_column: str | None = None
    reasoning_column: str | None = None
    asks: bool = False
    """Whether names and numbers may show that reasoning tokens stand beside the output, where no total does."""
    checks_total: bool = False
    """Whether totals that are not prompt plus output are refused."""

    def __post_init__(self) -> None:
        if self.options.prompt_includes_cached is not None:
            self._settle(inside=self.options.prompt_includes_cached, why="as asked (prompt_includes_cached)")
        elif self.cached_inside is None and self.total is None:
            self._settle_by_name()

    def apply(self, made: dict[str, pl.Series], raw: pl.DataFrame) -> None:
        """Puts cached tokens into ``prompt_tokens`` and reasoning into ``output_tokens`` where the source leaves them
        out. ``cache_write_tokens`` is used up.

        Raises:
            TraceError: ``trace.ambiguous_cached`` where nothing says if the prompt includes cached tokens.
        """
        written = made.pop("cache_write_tokens", None)
        total = None
        if self.total is not None and self.total in raw.columns:
            total = casts.tokens(raw[self.total], self.options.limits)[0]
        prompt, output = made.get("prompt_tokens"), made.get("output_tokens")
        if prompt is not None:
            self._cached(made, prompt, written, output, total)
        reasoning = made.get("reasoning_tokens")
        if output is not None and reasoning is not None:
            self._reasoning(made, output, reasoning, total)
        if self.checks_total and total is not None and prompt is not None and output is not None:
            self._total(made["prompt_tokens"], made["output_tokens"], total)

    def _total(self, prompt: pl.Series, output: pl.Series, total: pl.Series) -> None:
        """Tokens that are in the total only are cached or reasoning ones that no column brought in."""
        known = (prompt > 0) & (output > 0) & (total > 0)
        more = int((known & (total > prompt + output)).sum())
        if 2 * more > int(known.sum()):
            cure = (
                "map cached_tokens, cache_write_tokens or reasoning_tokens to the columns that hold the rest; if the "
                f"total counts something else, rename {self.total!r}"
            )
            raise TraceError(
                "trace.contradicting_total",
                f"in {more:,} of the first {int(known.sum()):,} rows {self.total!r} is more than prompt and output: "
                f"{cure}",
                [FieldError(cure, field="mapping", column=self.total, rule="contradicting_total", cure=cure)],
            )
        same = int((known & (total == prompt)).sum())
        if 2 * same > int(known.sum()):
            cure = (
                f"map prompt_tokens to a column of the input alone; if {self.total!r} counts something else, rename it"
            )
            what = f"in {same:,} of the first {int(known.sum()):,} rows the prompt has as many tokens as {self.total!r}"
            raise curable("trace.contradicting_total", what, cure, "mapping", column=self.total)
        if bool((known & (total != prompt + output)).any()):
            self.ledger.warn(
                "total", f"in some rows {self.total!r} is not the sum of prompt and output; it was not used"
            )

    def _cached(
        self,
        made: dict[str, pl.Series],
        prompt: pl.Series,
        written: pl.Series | None,
        output: pl.Series | None,
        total: pl.Series | None,
    ) -> None:
        cached = made.get("cached_tokens")
        parts = [part.fill_null(0) for part in (cached, written) if part is not None]
        if not parts:
            return
        beside = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        if not bool((beside > 0).any()):
            return
        if self.cached_inside is None and not self.cached_by_row:
            self._weigh(prompt, beside, output, total)
        if self.cached_by_row and total is not None and output is not None:
            outside = (total == prompt + beside + output).fill_null(value=False)
            made["prompt_tokens"] = (prompt + beside.set(~outside, 0)).alias("prompt_tokens")
        elif self.cached_inside is False:
            made["prompt_tokens"] = (prompt + beside).alias("prompt_tokens")

    def _settle_by_name(self) -> None:
        """Gateways in front of Anthropic keep its names of cached tokens beside an OpenAI count that includes them, so
        a prompt column with OpenAI's name tells nothing."""
        if self.cached_column is None:
            return
        name = self.cached_column.rsplit(".", 1)[-1]
        prompt = leaf(self.prompt_column or "")
        if _UNCACHED.search(prompt):
            self._settle(inside=False, why=f"{self.prompt_column!r} says that it excludes them")
        elif EXCLUDED.match(name) and "prompt" not in prompt:
            self._settle(inside=False, why=f"{name!r} is the name of providers whose prompt counts exclude it")
        elif _INCLUDED.search(self.cached_column):
            self._settle(inside=True, why=f"{self.cached_column!r} is OpenAI's name, a part of the prompt count")

    def _weigh(self, prompt: pl.Series, beside: pl.Series, output: pl.Series | None, total: pl.Series | None) -> None:
        """Decides by the numbers of the first batch that has any cached tokens."""
        telling = beside > 0
        above = int(((beside > prompt) & telling).sum())
        if total is not None and output is not None:
            inside = 0.0 if above else _share(total == prompt + output, telling)
            outside = _share(total == prompt + beside + output, telling)
            both = _share(
                (total == prompt + output) & (beside <= prompt) | (total == prompt + beside + output), telling
            )
            if both >= _CLEAR_SHARE > max(inside, outside):
                self.cached_by_row = True
                self.ledger.assumed["cached_tokens"] = (
                    f"by row inside the prompt count or added, as {self.total!r} adds up"
                )
                return
            if inside >= _CLEAR_SHARE or outside >= _CLEAR_SHARE:
                self._settle(inside=inside >= outside, why=f"{self.total!r} adds up so")
                return
        self._settle_by_name()
        if self.cached_inside is not None:
            return
        known = int(telling.sum())
        alternatives = (
            ("true", "the prompt count includes them", int(prompt.filter(telling).sum())),
            ("false", "the prompt count excludes them", int((prompt + beside).filter(telling).sum())),
        )
        seen = f" In {above:,} of them there are more cached tokens than prompt tokens." if above else ""
        if 0 < above < known:
            seen += " If calls to providers that count in different ways are mixed, upload each provider's by itself."
        raise TraceError(
            "trace.ambiguous_cached",
            f"{known:,} of the first rows have cached tokens, and nothing says if the prompt count includes them."
            f"{seen} Say it by the parameter prompt_includes_cached (true or false)",
            [
                FieldError(
                    f"{what}: those rows then have {tokens:,} prompt tokens: then give prompt_includes_cached={value}",
                    field="prompt_includes_cached",
                    column=self.cached_column,
                    rule="ambiguous_cached",
                    cure=f"prompt_includes_cached={value}",
                )
                for value, what, tokens in alternatives
            ],
        )

    def _reasoning(
        self, made: dict[str, pl.Series], output: pl.Series, reasoning: pl.Series, total: pl.Series | None
    ) -> None:
        some = reasoning.fill_null(0)
        telling = some > 0
        prompt = made.get("prompt_tokens")
        if self.reasoning_inside is None and bool(telling.any()):
            if total is not None and prompt is not None:
                self._settle_reasoning(
                    inside=_share(total == prompt + output + some, telling) < _CLEAR_SHARE,
                    why=f"{self.total!r} adds up so",
                )
            elif self.asks and _share(some > output, telling) >= _LARGER_SHARE:
                self._settle_reasoning(inside=False, why="many rows have more of them than output")
            elif self.asks and _THOUGHTS.search(leaf(self.reasoning_column or "")):
                self._settle_reasoning(inside=False, why=f"{self.reasoning_column!r} is Gemini's name")
        if self.reasoning_inside is False:
            made["output_tokens"] = (output + some).alias("output_tokens")

    def _settle_reasoning(self, *, inside: bool, why: str) -> None:
        self.reasoning_inside = inside
        if not inside:
            self.ledger.assumed["reasoning_tokens"] = f"added to the output: {why}"

    def _settle(self, *, inside: bool, why: str) -> None:
        self.cached_inside = inside
        if self.cached_column is not None:
            said = "inside the prompt count" if inside else "added to the prompt count"
            self.ledger.assumed["cached_tokens"] = f"{said}: {why}"


def _share(holds: pl.Series, where: pl.Series) -> float:
    found = holds.filter(where).drop_nulls()
    return int(found.sum()) / len(found) if len(found) else 0.0


def check_unmapped(sample: Sample, columns: Mapping[MappedField, str], options: IngestOptions) -> None:
    """A reading that forgets cached or reasoning tokens that stand beside the counts loses most of the load in silence:
    refused where a column's name says so, or the first rows do, which have more of them than of the whole. ``columns``:
    what is read as which field.

    Raises:
        TraceError: ``trace.ambiguous_cached``, ``trace.reasoning_left_out``.
    """
    mapped = set(columns.values())
    prompt, output = columns["prompt_tokens"], columns["output_tokens"]
    beside = [column for column in sample.columns if column not in mapped]
    cached_mapped = bool({"cached_tokens", "cache_write_tokens"} & set(columns))
    if options.prompt_includes_cached is None and not cached_mapped and _UNCACHED.search(leaf(prompt)):
        held = [column for column in beside if _CACHE.search(leaf(column)) and _some(sample, column)]
        which = f"cached_tokens={held[0]}" if held else "cached_tokens to the column that holds the rest"
        cure = f"map {which}, or prompt_tokens to a column that counts all; or give prompt_includes_cached=true"
        raise _left_out(f"the name of {prompt!r} says that it leaves cached tokens out", cure, prompt)
    for column in beside if options.prompt_includes_cached is None else ():
        name = leaf(column)
        known = EXCLUDED.match(column.rpartition(".")[2]) and _some(sample, column)
        if column.rpartition(".")[0] != prompt.rpartition(".")[0] or not _CACHE.search(name) or _NO_COUNT.search(name):
            continue
        if known or _larger(sample, column, prompt):
            field = "cache_write_tokens" if re.search("creat|writ", name) else "cached_tokens"
            cure = f"map {field}={column}; or give prompt_includes_cached=true if the prompt count includes it"
            why = (
                f"the column {column!r} holds tokens that providers with such a name leave out of the prompt count"
                if known
                else f"many rows have more tokens in {column!r} than in {prompt!r}, which so leaves them out"
            )
            raise _left_out(why, cure, column)
    for column in beside if "reasoning_tokens" not in columns else ():
        name = leaf(column)
        if (
            column.rpartition(".")[0] != output.rpartition(".")[0]
            or not _REASONING.search(name)
            or _NO_COUNT.search(name)
        ):
            continue
        if (_THOUGHTS.search(name) and _some(sample, column)) or _larger(sample, column, output):
            cure = f"map reasoning_tokens={column}; or rename the column if it counts something else"
            what = f"{output!r} leaves out the tokens of {column!r}"
            raise curable("trace.reasoning_left_out", what, cure, "mapping", column=column)


def _left_out(what: str, cure: str, column: str) -> TraceError:
    return curable("trace.ambiguous_cached", what, cure, "mapping", column=column)


def _numbers(sample: Sample, column: str) -> pl.Series:
    return pl.Series([_number(row.get(column)) for row in sample.rows], dtype=pl.Float64)


def _number(value: object) -> float | None:
    """A finite number; ``None`` where it is none."""
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _some(sample: Sample, column: str) -> bool:
    return bool((_numbers(sample, column) > 0).any())


def _larger(sample: Sample, column: str, whole: str) -> bool:
    """Whether a fifth of the first rows that have any of ``column`` have more of it than of ``whole``."""
    part = _numbers(sample, column)
    return _share(part > _numbers(sample, whole), (part > 0).fill_null(value=False)) >= _LARGER_SHARE
