"""Streamed answers of a server -> rows of a table of steps.

The gap between the outputs of two steps is the time of a step, so that when all of some requests decode together, the
times at which their tokens arrive say how long a step of that batch takes. Times are taken in the middle over the
requests and over several steps, which takes out most of the network's jitter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from replay.experiment.plan import Part

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

WINDOW_STEPS = 16
_LEAST_STEPS = 8
_TOKENS_PER_CHUNK = 1.3
_FELT = 1.5
"""A gap so many times the usual one holds more than decodes."""
_LONG = 2.5
"""A gap so many times the usual one is longer than jitter makes it."""


@dataclass(frozen=True)
class Answer:
    """One streamed answer. Times in seconds of one clock; ``tokens``: output tokens after each chunk."""

    sent_s: float
    times_s: Float64Array
    tokens: Int64Array
    prompt_tokens: int
    cached_tokens: int = 0

    @property
    def output_tokens(self) -> int:
        return int(self.tokens[-1])

    @property
    def token_times_s(self) -> Float64Array:
        """When each output token arrived, shape (output_tokens,)."""
        return self.times_s[np.searchsorted(self.tokens, np.arange(1, self.output_tokens + 1))]


@dataclass(frozen=True)
class Row:
    """One measured step, in the columns of ``calibration.steps``."""

    kind: Literal["step", "ttft"]
    prefill_tokens: int
    cached_tokens: int
    decode_requests: int
    decode_context_tokens: int
    time_s: float

    def columns(self) -> dict[str, str | int | float]:
        return asdict(self)


@dataclass
class UnusableAnswersError(Exception):
    """Answers that came, but from which no step time can be told. ``everywhere``: other parts would fare no better."""

    detail: str
    cure: str
    everywhere: bool = False

    def __str__(self) -> str:
        return f"{self.detail}; {self.cure}"


def rows_of(part: Part, answers: Sequence[Answer], added: Sequence[Answer] = ()) -> list[Row]:
    """What the answers of a part measure. ``added``: those to the prompts that joined, in order.

    Raises:
        UnusableAnswersError: with the reason and the cure.
    """
    if part.kind == "single":
        return [_first_token(answer) for answer in answers]
    _check_streaming(answers)
    together = _Together(answers)
    return together.windows() if part.kind == "decode" else together.joined(added)


def _first_token(answer: Answer) -> Row:
    new = answer.prompt_tokens - answer.cached_tokens
    return Row("ttft", max(new, 1), answer.cached_tokens, 0, 0, float(answer.times_s[0]) - answer.sent_s)


def _check_streaming(answers: Sequence[Answer]) -> None:
    chunks = sum(len(answer.times_s) for answer in answers)
    tokens = sum(answer.output_tokens for answer in answers)
    if chunks <= len(answers):
        raise UnusableAnswersError(
            "the whole answer comes in one chunk, so that the server or a proxy before it does not stream",
            "name the address of the engine itself, or switch off the proxy's buffering (nginx: proxy_buffering off)",
            everywhere=True,
        )
    if tokens / chunks > _TOKENS_PER_CHUNK:
        raise UnusableAnswersError(
            f"{tokens / chunks:.2g} output tokens per streamed chunk, so that gaps between chunks are no step times",
            "measure the server without speculative decoding and with a stream interval of 1",
            everywhere=True,
        )
    spans = np.array([answer.times_s[-1] - answer.times_s[0] for answer in answers])
    waits = np.array([answer.times_s[0] - answer.sent_s for answer in answers])
    if float(np.median(spans)) < 0.05 * float(np.median(waits)):
        raise UnusableAnswersError(
            "all tokens of an answer come at once after a long wait, so that something before the server holds them",
            "name the address of the engine itself, or switch off the proxy's buffering (nginx: proxy_buffering off)",
            everywhere=True,
        )
    gaps = np.concatenate([np.diff(answer.times_s) for answer in answers])
    if float(np.median(gaps)) < 0.1 * float(np.mean(gaps)):
        raise UnusableAnswersError(
            "tokens come in bursts of many, so that gaps between them are no step times",
            "switch off buffering between here and the server, and measure from nearby",
            everywhere=len(answers) == 1,
        )


class _Together:
    """Answers from the first token of the last one to the last token of the first that ends, aligned by steps."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        times = [answer.token_times_s for answer in answers]
        begin = max(float(one[0]) for one in times)
        first = [int(np.argmin(np.abs(one - begin))) for one in times]
        self.steps = min(len(one) - 1 - at for one, at in zip(times, first, strict=True))
        if self.steps < _LEAST_STEPS:
            short = min(len(one) for one in times)
            raise UnusableAnswersError(
                f"only {max(self.steps, 0)} steps had all {len(answers)} requests decoding (shortest answer: {short} "
                "tokens)",
                "where answers end early the server does not honour ignore_eos; where they waited for each other its "
                "max_num_seqs or KV cache is smaller than this deployment's: give --set max_num_seqs as it has",
            )
        self.requests = len(answers)
        self.streams_s = np.stack([one[at : at + self.steps + 1] for one, at in zip(times, first, strict=True)])
        self.step_end_s: Float64Array = np.median(self.streams_s, axis=0)
        self._context = sum(answer.prompt_tokens + at for answer, at in zip(answers, first, strict=True))

    def context_tokens(self, before: int, last: int) -> int:
        """Tokens that the decodes of one step read, its own included: the mean of steps ``before + 1`` to ``last``."""
        return round(self._context + self.requests * (before + 1 + last) / 2)

    def windows(self) -> list[Row]:
        """One row for each window of steps."""
        count = max(1, self.steps // WINDOW_STEPS)
        edges = np.linspace(0, self.steps, count + 1).round().astype(int).tolist()
        rows = []
        for low, high in pairwise(edges):
            time_s = float(self.step_end_s[high] - self.step_end_s[low]) / (high - low)
            rows.append(Row("step", 0, 0, self.requests, self.context_tokens(low, high), time_s))
        return rows

    def joined(self, added: Sequence[Answer]) -> list[Row]:
        """One row for each added prompt that was computed in one step with the decodes."""
        usual_s = float(np.median(np.diff(self.step_end_s)))
        self._check_one_server(added, usual_s)
        rows, cut = [], 0
        for answer in added:
            end = int(np.argmin(np.abs(self.step_end_s - answer.times_s[0])))
            if not 2 <= end < self.steps:
                continue
            before_s, gap_s, after_s = np.diff(self.step_end_s[end - 2 : end + 2]).tolist()
            if max(before_s, after_s) > _FELT * usual_s:
                cut += 1
                continue
            new = max(answer.prompt_tokens - answer.cached_tokens, 1)
            context = self.context_tokens(end - 1, end)
            rows.append(Row("step", new, answer.cached_tokens, self.requests, context, gap_s))
        if rows and cut <= len(rows):
            return rows
        if cut:
            raise UnusableAnswersError(
                f"{cut} of {len(added)} added prompts were computed in several steps",
                "give max_num_batched_tokens and long_prefill_token_threshold as the server has them, and keep other "
                "load off it",
            )
        raise UnusableAnswersError(
            "no added prompt was answered while all requests decoded", "measure from nearby, and without other load"
        )

    def _check_one_server(self, added: Sequence[Answer], usual_s: float) -> None:
        """A step with a long prompt holds up every decode of the same engine."""
        felt = []
        for answer in added:
            within_s = float(answer.times_s[0]) - usual_s
            if not self.step_end_s[0] <= within_s < self.step_end_s[-1] - usual_s:
                continue
            at = (self.streams_s <= within_s).sum(axis=1).clip(1, self.steps)[:, None]
            gaps_s = np.take_along_axis(self.streams_s, at, 1) - np.take_along_axis(self.streams_s, at - 1, 1)
            if gaps_s.max() > _LONG * usual_s:
                felt.append(float((gaps_s > (usual_s + gaps_s.max()) / 2).mean()))
        if felt and 0.2 < float(np.median(felt)) < 0.8:
            raise UnusableAnswersError(
                f"a long prompt holds up {np.median(felt):.0%} of the requests that decode, not all: several servers "
                "or data-parallel ranks answer at this address",
                "name the address of one engine",
                everywhere=True,
            )
