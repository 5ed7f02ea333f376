"""Token counts out of the ``usage`` objects of the providers: what counts as prompt, cached, output, reasoning.

Shapes (rules of the providers' API references):

- OpenAI chat (``prompt_tokens``), Responses (``input_tokens`` with ``input_tokens_details``), OpenTelemetry: the input
  holds what came from a cache;
- Anthropic (``input_tokens`` with ``cache_read_input_tokens``, ``cache_creation_input_tokens``) and Amazon Bedrock:
  the input is the uncached rest, the prompt is the sum of the three;
- Gemini (``promptTokenCount``, in its Python library ``prompt_token_count``): cached ones included; what tools put into
  the prompt and ``thoughtsTokenCount`` stand beside the prompt and the candidates, unless the total adds up without.

Reasoning is part of the output, except where ``total = prompt + output + reasoning`` shows that it is not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from replay.errors import FieldError, TraceError, curable
from replay.traces.formats.records import RecordReading, Row, records_of
from replay.traces.formats.values import BadCountError, count, known, obj, pick_key

CachedSide = Literal["included", "excluded"]
"""Whether an input holds the cached tokens."""

_PROMPT = (
    "prompt_tokens", "promptTokens", "promptTokenCount", "input_tokens", "inputTokens", "inputTokenCount",
    "prompt_token_count",
)  # fmt: skip
_OUTPUT = (
    "completion_tokens", "completionTokens", "candidatesTokenCount", "output_tokens", "outputTokens",
    "outputTokenCount", "candidates_token_count",
)  # fmt: skip
_TOTAL = ("total_tokens", "totalTokens", "totalTokenCount", "total_token_count")
_READ_INSIDE = (
    "cached_tokens", "cachedContentTokenCount", "cached_content_token_count", "prompt_cache_hit_tokens",
    "cached_input_tokens", "cachedInputTokens", "input_cached_tokens",
)  # fmt: skip
_READ_BESIDE = (
    "cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount", "prompt_cache_read_tokens",
)  # fmt: skip
_CREATED = (
    "cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount", "prompt_cache_write_tokens",
)  # fmt: skip
_PROMPT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "promptTokensDetails", "input_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_THOUGHTS = ("thoughtsTokenCount", "thoughts_token_count")
_REASONING = ("reasoning_tokens", *_THOUGHTS, "reasoning", "reasoningTokens")
_OF_TOOLS = ("toolUsePromptTokenCount", "tool_use_prompt_token_count")
_LARGER_SHARE = 0.2
_MIN_ROWS, _MOST_SHARE = 5, 0.5
_APART = re.compile("anthropic|bedrock|claude", re.IGNORECASE)
"""Providers that count cached tokens apart themselves."""
_EXCLUDES = ("input_tokens", "inputTokens", "inputTokenCount")
"""Names of an input that, beside ``cache_read...``, is the uncached rest."""


class Parts(NamedTuple):
    """A usage object taken apart. A value that is no whole number is ``bad``; the cast will name its rule."""

    given: int | None = None
    output: int | None = None
    read: int | None = None
    created: int | None = None
    reasoning: int | None = None
    total: int | None = None
    side: CachedSide | None = None
    """By the shape's own definition; ``None``: it has none."""
    bad: tuple[str, str] | None = None
    """Canonical field and what the source says there."""

    @property
    def extra(self) -> int:
        """Tokens read from or written to a cache."""
        return (self.read or 0) + (self.created or 0)

    def shows(self) -> CachedSide | None:
        """What the numbers of the row alone prove or, with a total, say."""
        if self.given is None or self.extra == 0:
            return None
        if self.extra > self.given:
            return "excluded"
        if self.total is None or self.output is None:
            return None
        if self.total == self.given + self.extra + self.output:
            return "excluded"
        return "included" if self.total == self.given + self.output else None

    def by_total(self) -> int | None:
        """The whole prompt as the total less the output, where it can be: at least the input, at most all parts."""
        if self.given is None or self.total is None or self.output is None:
            return None
        prompt = self.total - self.output
        return prompt if self.given <= prompt <= self.given + self.extra else None

    def row(self, side: CachedSide | None, prompt: int | None = None) -> Row:
        """The canonical counts; ``prompt``: the whole prompt, where it is known by other means."""
        if self.bad is not None:
            return {"prompt_tokens": None, "output_tokens": None, self.bad[0]: self.bad[1]}
        if prompt is None:
            prompt = self.given
            if side == "excluded" and prompt is not None:
                prompt += self.extra
        output = self.output
        if self.reasoning and output is not None and prompt is not None:
            beside = self.total in (prompt + output + self.reasoning, (self.given or 0) + output + self.reasoning)
            if beside or self.reasoning > output:
                output += self.reasoning
        return {
            "prompt_tokens": prompt,
            "output_tokens": output,
            "cached_tokens": self.read,
            "reasoning_tokens": self.reasoning,
        }


def is_usage(value: object) -> bool:
    """Whether an object counts input and output tokens under names of a provider."""
    outputs = (*_OUTPUT, *_THOUGHTS)
    return isinstance(value, dict) and any(n in value for n in _PROMPT) and any(n in value for n in outputs)


@lru_cache(maxsize=4096)
def _names(keys: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Of each list of names those that an object of these keys has, in the list's order."""
    lists = (
        _PROMPT,
        _OUTPUT,
        _TOTAL,
        _READ_INSIDE,
        _READ_BESIDE,
        _CREATED,
        _REASONING,
        _PROMPT_DETAILS,
        _OUTPUT_DETAILS,
    )
    return tuple(tuple(name for name in names if name in keys) for names in lists)


def parts_of(usage: Mapping[str, Any]) -> Parts:
    """A ``usage`` object of any provider, taken apart."""
    prompt, output, total, inside_names, beside_names, created, reasoning, prompt_more, output_more = _names(
        tuple(usage)
    )
    prompt_details = obj(pick_key(usage, *prompt_more)) if prompt_more else {}
    output_details = obj(pick_key(usage, *output_more)) if output_more else {}
    inside = pick_key(usage, *inside_names)
    if inside is None and prompt_details:
        inside = pick_key(prompt_details, *_READ_INSIDE, "cache_read")
    beside = pick_key(usage, *beside_names)
    thought = pick_key(usage, *reasoning)
    if thought is None and output_details:
        thought = pick_key(output_details, *_REASONING)
    raw: dict[str, Any] = {
        "prompt_tokens": pick_key(usage, *prompt),
        "output_tokens": pick_key(usage, *output),
        "cached_tokens": inside if inside is not None else beside,
        "created": pick_key(usage, *created),
        "reasoning_tokens": thought,
        "total": pick_key(usage, *total),
    }
    side: CachedSide | None = None
    if inside is not None and (beside is None or prompt_details):
        side = "included"
    elif not prompt_details and any(name in _EXCLUDES and known(usage[name]) for name in prompt):
        side = "excluded"
    if side == "included" and beside is None:
        raw["created"] = None  # an OpenAI-shaped input holds what was written to the cache, too
    elif raw["created"] is None and side == "excluded" and isinstance(usage.get("cache_creation"), dict):
        raw["created"] = _sum(usage["cache_creation"].values())  # Anthropic's breakdown, by how long it is kept
    parts = parts_from(raw, side)
    return _with_thoughts(parts, usage) if any(name in usage for name in (*_THOUGHTS, *_OF_TOOLS)) else parts


def _sum(values: Iterable[object]) -> int | None:
    counts = [value for value in values if isinstance(value, int)]
    return sum(counts) if counts else None


def _with_thoughts(parts: Parts, usage: Mapping[str, Any]) -> Parts:
    """Gemini's thoughts put into the output, and what tools added into the prompt."""
    of_tools = pick_key(usage, *_OF_TOOLS)
    given = (parts.given or 0) + (of_tools if isinstance(of_tools, int) else 0)
    if parts.bad is not None or parts.given is None:
        return parts
    if parts.total is not None and parts.total == parts.given + (parts.output or 0):
        return parts
    output = parts.output
    if parts.reasoning is not None and parts.total != given + (output or 0):
        output = (output or 0) + parts.reasoning
    return parts._replace(given=given, output=output)


def parts_from(raw: Mapping[str, Any], side: CachedSide | None) -> Parts:
    """Parts from raw values by canonical name (``created``: written to the cache; ``total``)."""
    values: dict[str, int | None] = {}
    for name in ("prompt_tokens", "output_tokens", "cached_tokens", "created", "reasoning_tokens", "total"):
        value = raw.get(name)
        if value is None:
            values[name] = None
            continue
        try:
            values[name] = count(value)
        except BadCountError as error:
            if name == "total":
                values[name] = None
                continue
            return Parts(bad=("cached_tokens" if name == "created" else name, _shown(error.value)))
    return Parts(
        values["prompt_tokens"], values["output_tokens"], values["cached_tokens"], values["created"],
        values["reasoning_tokens"], values["total"], side,
    )  # fmt: skip


def _shown(value: object) -> str:
    return "{...}" if isinstance(value, (dict, list)) else str(value)


@dataclass
class CachedRule:
    """Decides for one file whether inputs hold the cached tokens, where the numbers of a row do not show it.

    ``parts`` gives the parts of all calls of a record with their group (a provider, a model): a group of which many
    rows have more cached tokens than input has inputs without them, in all its rows. That takes a second look at the
    whole file, made at the first row that needs it.
    """

    reading: RecordReading
    parts: Callable[[dict[str, Any]], Iterable[tuple[str, Parts]]]
    label: str
    proofs: defaultdict[str, Counter[str]] | None = None
    noted: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    totals: Counter[str] = field(default_factory=Counter)
    """Rows that have a total without cached tokens, and those of which it is ``more`` than the parts."""

    def row(self, group: str, parts: Parts) -> Row:
        """The canonical counts of a call.

        Raises:
            TraceError: ``trace.ambiguous_cached`` where nothing decides.
        """
        if parts.bad is not None or parts.given is None or parts.extra == 0:
            self._check_total(parts)
            return self._row(parts, parts.side)
        if self.proofs is None:
            _prove(self.noted[group], parts)
        if parts.side is None and parts.total is not None and self.reading.options.prompt_includes_cached is None:
            prompt = parts.by_total()
            if prompt is None:
                return {"rule": "contradicts", "column": self.label}
            if prompt > (parts.given or 0):
                self._added()
            return self._row(parts, None, prompt)
        side = self._side(group, parts)
        if side == "excluded":
            self._added()
        return self._row(parts, side)

    def _row(self, parts: Parts, side: CachedSide | None, prompt: int | None = None) -> Row:
        row = parts.row(side, prompt)
        if parts.bad is None and row["output_tokens"] != parts.output:
            self.reading.ledger.warn(
                "reasoning", "in some rows reasoning tokens stand beside the output: they were added"
            )
        return row

    def _check_total(self, parts: Parts) -> None:
        whole = (parts.given or 0) + (parts.output or 0)
        if not (parts.total and parts.given and parts.output):
            return
        self.totals["rows"] += 1
        if parts.total not in (whole, whole + (parts.reasoning or 0)):
            self.totals["more"] += parts.total > whole
            self.reading.ledger.warn(
                "total", f"in some rows the total is not the sum of {self.label} and output; it was not used"
            )

    def _added(self) -> None:
        self.reading.ledger.warn(
            "cached_added",
            f"{self.label} is the uncached rest in some rows: cache reads and writes were added to give the prompt",
        )

    def _side(self, group: str, parts: Parts) -> CachedSide:
        option = self.reading.options.prompt_includes_cached
        if option is not None:
            return "included" if option else "excluded"
        shown, side = parts.shows(), parts.side
        if shown == "excluded" and (side == "excluded" or parts.extra <= (parts.given or 0)):
            return "excluded"
        if self.proofs is None and side is not None and (shown in (None, side) or parts.extra > (parts.given or 0)):
            if side == "included" and shown is None and _APART.search(group):
                self.reading.ledger.warn(
                    "cached_apart",
                    f"{self.label} of {group[:40]} were read as holding the cached tokens, as the convention says; "
                    "some instruments write them without: then give prompt_includes_cached=false",
                )
            return side  # as it is defined; if the whole file shows otherwise, it is read again
        proofs = self._survey()[group]
        if proofs["larger"] >= _LARGER_SHARE * proofs["rows"]:
            return "excluded"
        if parts.extra > (parts.given or 0):
            return (
                side or "included"
            )  # an odd row out: read by definition, and rejected where the parts exceed the whole
        if side is not None and shown in (None, side):
            return side
        if side is None and shown is None and (proofs["included"] > 0) != (proofs["excluded"] > 0):
            return "included" if proofs["included"] else "excluded"
        raise self._doubt(parts)

    def _survey(self) -> defaultdict[str, Counter[str]]:
        """For each group: rows with cached tokens, those with more of them than input, and what totals say."""
        if self.proofs is None:
            self.proofs = defaultdict(Counter)
            table = self.reading.table
            for records in records_of(table) if table is not None else ():
                for record in records.objects:
                    for group, parts in self.parts(record):
                        if parts.given is None or parts.extra == 0:
                            continue
                        _prove(self.proofs[group], parts)
        return self.proofs

    def settle(self) -> None:
        """At the end of the file: asks for another reading if rows were taken by definition of a provider whose inputs
        are shown to exclude the cached tokens.

        Raises:
            TraceError: ``trace.contradicting_total``: in most rows the parts miss some of the total.
        """
        rows, more = self.totals["rows"], self.totals["more"]
        if rows >= _MIN_ROWS and more > _MOST_SHARE * rows:
            what = (
                f"in {more:,} of {rows:,} rows the total is more than {self.label} and output: tokens of reasoning, of "
                "tools or of a cache are missing"
            )
            cure = "add them to the counts, or leave the total out if it counts something else"
            raise curable("trace.contradicting_total", what, cure, "file", column=self.label)
        larger = any(proofs["larger"] >= _LARGER_SHARE * proofs["rows"] for proofs in self.noted.values())
        if self.proofs is None and larger:
            ledger = self.reading.ledger
            ledger.survey["cached"], ledger.again = self.noted, True

    def _doubt(self, parts: Parts) -> TraceError:
        given = parts.given or 0
        told = "a total contradicts the names" if parts.shows() is not None else "nothing shows"
        errors = [
            FieldError(
                f"{what}: a prompt of {tokens:,} tokens in the first such row: give prompt_includes_cached={value}",
                field="prompt_includes_cached",
                column=self.label,
                rule="ambiguous_cached",
                cure=f"prompt_includes_cached={value}",
            )
            for value, what, tokens in (
                ("true", f"{self.label} holds the cached tokens", given),
                ("false", "the cached tokens come on top", given + parts.extra),
            )
        ]
        return TraceError(
            "trace.ambiguous_cached",
            f"some rows have cached tokens, and {told} whether {self.label} holds them "
            f"({given:,} input, {parts.extra:,} cached). Say it by the parameter prompt_includes_cached (true, false)",
            errors,
        )


def _prove(proofs: Counter[str], parts: Parts) -> None:
    proofs["rows"] += 1
    proof = "larger" if parts.extra > (parts.given or 0) else parts.shows()
    if proof is not None:
        proofs[proof] += 1


def cached_rule(
    reading: RecordReading, parts: Callable[[dict[str, Any]], Iterable[tuple[str, Parts]]], label: str
) -> CachedRule:
    """The file's one rule, made at first use."""
    rule = reading.state.get("cached_rule")
    if not isinstance(rule, CachedRule):
        rule = reading.state["cached_rule"] = CachedRule(reading, parts, label, reading.ledger.survey.get("cached"))
        reading.at_end.append(rule.settle)
    return rule


def own_total_dropped(parts: Parts) -> Parts:
    """The parts without a total that a gateway added up itself, of the prompt and output that it shows: such a total
    says nothing about cached tokens."""
    own = parts.total is not None and parts.total == (parts.given or 0) + (parts.output or 0)
    return parts._replace(total=None) if own else parts


def without_side(parts: Parts) -> Parts:
    """The parts of a source that defines nothing about cached tokens."""
    return parts._replace(side=None)
