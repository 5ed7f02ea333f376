"""Carries out a planned experiment on a server, and keeps what it measured whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from api.endpoint.client import Endpoint
from api.endpoint.faults import PassingFaultError, refusal
from replay.deployment import Deployment
from replay.errors import SpecError
from replay.experiment.answers import Answer, Row, UnusableAnswersError, rows_of
from replay.experiment.plan import Part, Plan, plan_experiment

T = TypeVar("T")

_TRIES = 3
_FIRST_WAIT_S = 0.5
_FAILURES_TO_STOP = 3
LATE_SHARES = {"single": 0.05, "mixed": 0.05, "decode": 0.3}
"""Of a row's time, by which this machine may be late in reading; decodes are timed over several steps."""
_BEAT_S = 0.005
_UNEQUAL = 0.3
"""Times to first token of equal prompts on an idle server that differ more have met other load."""


@dataclass(frozen=True)
class Budget:
    """What an experiment may take at most."""

    max_tokens: int
    max_seconds: float


@dataclass
class Findings:
    """What was measured so far; complete at any time, so that an interrupted experiment keeps it."""

    rows: list[Row] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Parts without a result, each with the reason."""
    notes: list[str] = field(default_factory=list)
    model: str = ""
    dialect: str = ""
    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0


class _Lateness:
    """How late timers of this process are, as is then its reading: it or its machine has too much to do."""

    def __init__(self) -> None:
        self._sum_s = 0.0
        self._beats = 0

    async def watch(self) -> None:
        clock = asyncio.get_running_loop()
        while True:
            due_s = clock.time() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self._sum_s += max(clock.time() - due_s, 0.0)
            self._beats += 1

    @property
    def mean_s(self) -> float:
        return self._sum_s / self._beats if self._beats else 0.0


class Experiment:
    """One run of a plan against one server."""

    def __init__(
        self,
        endpoint: Endpoint,
        deployment: Deployment,
        budget: Budget,
        found: Findings,
        *,
        progress: Callable[[str, float], None],
    ) -> None:
        self._endpoint = endpoint
        self._deployment = deployment
        self._budget = budget
        self._found = found
        self._progress = progress
        self._clock = asyncio.get_running_loop()
        self._begin_s = self._clock.time()
        self._taken_s = self._planned_s = 0.0
        self._refused_at_once = 0
        self._unequal: list[float] = []
        self._ended_early = False
        self._cached = self._prompted = 0

    async def run(self, served_model: str | None) -> None:
        """Measures until the plan, the time or the tokens end.

        Raises:
            SpecError: where the server cannot be measured, with the cure; what was measured before stays in the
                findings, unless its answers mean something else than they seem to.
        """
        try:
            await self._prepare(served_model)
            plan = plan_experiment(
                self._deployment,
                max_tokens=self._budget.max_tokens,
                max_seconds=self._budget.max_seconds,
                longest_tokens=self._endpoint.longest_tokens,
            )
            await self._parts(plan)
        except UnusableAnswersError as error:
            self._found.rows.clear()  # what was measured before rests on the same answers
            raise refusal("stream", error.detail, error.cure) from error
        finally:
            self._found.seconds = self._clock.time() - self._begin_s
            self._found.tokens = self._endpoint.spent_tokens
            self._say_conditions()
        if not self._found.rows:
            why = self._found.lost[0] if self._found.lost else "no time was left"
            raise refusal("nothing", f"nothing could be measured: {why}", "mend that, and start again")

    async def _prepare(self, served_model: str | None) -> None:
        self._progress("asking the server", 0.0)
        cure = "check the address and that the server is up, and start again"
        try:
            async with asyncio.timeout(self._left_s()):
                await self._tried(lambda: self._endpoint.find_model(served_model))
                await self._tried(self._endpoint.agree)
        except PassingFaultError as error:
            raise refusal("unreachable", error.detail, cure) from error
        except TimeoutError as error:
            raise refusal("unreachable", "no answer came within --max-seconds", cure) from error
        self._found.model, self._found.dialect = self._endpoint.model, self._endpoint.dialect.said

    async def _parts(self, plan: Plan) -> None:
        failures, done_s, total_s = 0, 0.0, sum(plan.estimated_s)
        for index, (part, estimate_s) in enumerate(zip(plan.parts, plan.estimated_s, strict=True)):
            self._progress(part.label, done_s / total_s)
            done_s += estimate_s
            reason = self._not_worth_a_try(part, estimate_s)
            if reason:
                self._lose(part, reason)
                continue
            if failures >= _FAILURES_TO_STOP:
                rest = len(plan.parts) - index
                self._found.lost.append(f"{rest} more parts: not begun, as {failures} in a row had failed")
                break
            try:
                async with asyncio.timeout(self._left_s()):
                    taken_s = await self._measure(part)
            except TimeoutError:
                self._lose(part, "cut off at --max-seconds")
                break
            except PassingFaultError as error:
                failures += 1
                if error.is_limit:
                    self._refused_at_once = part.at_once
                self._lose(part, error.detail)
            except UnusableAnswersError as error:
                failures = 0
                if error.everywhere:
                    raise
                self._lose(part, str(error))
            else:
                failures = 0
                self._taken_s, self._planned_s = self._taken_s + taken_s, self._planned_s + estimate_s
        self._progress("fitting", 1.0)

    def _not_worth_a_try(self, part: Part, estimate_s: float) -> str:
        """Why a part cannot succeed by what was seen so far; empty: it may."""
        slowness = max(1.0, self._taken_s / self._planned_s) if self._planned_s else 1.0
        if self._left_s() < estimate_s * slowness:
            return "would not end within --max-seconds"
        if self._endpoint.spent_tokens + part.tokens > self._budget.max_tokens:
            return "repeated requests left too few of --max-tokens"
        if self._refused_at_once and part.at_once >= self._refused_at_once:
            return f"the server refused {self._refused_at_once} requests at once before"
        return ""

    async def _measure(self, part: Part) -> float:
        """Measures a part; how long it took without what failed before, s."""
        lateness = _Lateness()
        watch = asyncio.create_task(lateness.watch())
        try:
            answers, added, taken_s = await (self._alone(part) if part.kind == "single" else self._batch(part))
        finally:
            watch.cancel()
        timed_s = min(_timed_s(answer) for answer in answers)
        if lateness.mean_s > LATE_SHARES[part.kind] * timed_s:
            raise UnusableAnswersError(
                f"this machine reads {lateness.mean_s * 1e3:.1f} ms late on the average, where {timed_s * 1e3:.1f} "
                "ms are to be timed",
                "measure from a faster machine, or one with nothing else to do",
            )
        self._found.rows += rows_of(part, answers, added)
        self._ended_early |= any(answer.output_tokens < part.output_tokens for answer in answers)
        return taken_s

    async def _batch(self, part: Part) -> tuple[list[Answer], list[Answer], float]:
        (answers, added), taken_s = await self._tried(lambda: self._together(part), part.tokens)
        return answers, added, taken_s

    async def _alone(self, part: Part) -> tuple[list[Answer], list[Answer], float]:
        tried = [
            await self._tried(lambda: self._one(part.prompt_tokens, 1), part.prompt_tokens + 1)
            for _ in range(part.requests)
        ]
        waits_s = [_timed_s(answer) for answer, _ in tried]
        self._unequal.append(max(waits_s) / min(waits_s) - 1)
        return [answer for answer, _ in tried], [], sum(taken_s for _, taken_s in tried)

    async def _together(self, part: Part) -> tuple[list[Answer], list[Answer]]:
        """The answers to requests sent at once, and to the prompts that join them."""
        heard = [asyncio.Event() for _ in range(part.requests)]
        added: list[Answer] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(part.prompt_tokens, part.output_tokens, event)) for event in heard]
                if part.added:
                    for event in heard:
                        await event.wait()
                while len(added) < part.added and not any(task.done() for task in tasks):
                    added.append(await self._one(part.added_tokens, 1))
        except BaseExceptionGroup as errors:
            raise _worst(errors) from errors
        return [task.result() for task in tasks], added

    async def _one(self, prompt_tokens: int, max_tokens: int, heard: asyncio.Event | None = None) -> Answer:
        answer = await self._endpoint.ask(prompt_tokens, max_tokens, heard)
        self._found.requests += 1
        self._cached += answer.cached_tokens
        self._prompted += answer.prompt_tokens
        return answer

    async def _tried(self, action: Callable[[], Awaitable[T]], tokens: int = 0) -> tuple[T, float]:
        """The action's result and how long it took, s. Waits between tries as the server asks; ``tokens``: its cost."""
        for number in range(1, _TRIES + 1):
            since_s = self._clock.time()
            try:
                return await action(), self._clock.time() - since_s
            except PassingFaultError as error:
                wait_s = _FIRST_WAIT_S * 2**number if error.retry_after_s is None else error.retry_after_s
                if number == _TRIES or self._endpoint.spent_tokens + tokens > self._budget.max_tokens:
                    raise
                if wait_s > self._left_s():
                    waits = f"; the wait of {wait_s:g} s that it asks for is longer than --max-seconds leaves"
                    raise PassingFaultError(error.detail + waits, is_limit=error.is_limit) from error
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _left_s(self) -> float:
        return self._begin_s + self._budget.max_seconds - self._clock.time()

    def _lose(self, part: Part, reason: str) -> None:
        self._found.lost.append(f"{part.label}: {reason}")

    def _say_conditions(self) -> None:
        """Notes on what was measured, and on what the answers say of the server."""
        rows = self._found.rows
        if rows:
            prompt, decodes = max(row.prefill_tokens for row in rows), max(row.decode_requests for row in rows)
            context = max(row.decode_context_tokens for row in rows)
            self._found.notes.append(
                f"Measured were prompts of up to {prompt:,} tokens, and steps of up to {decodes} decodes over "
                f"{context:,} tokens; beyond that the shape of the shipped step times is relied on."
            )
        if self._cached:
            self._found.notes.append(
                f"The server had {self._cached} of {self._prompted} prompt tokens in its prefix cache, although no "
                "two prompts were alike; they count as cached."
            )
        if self._ended_early:
            self._found.notes.append("Answers ended early: the server does not honour ignore_eos or min_tokens.")
        unequal = sorted(self._unequal)[len(self._unequal) // 2] if self._unequal else 0.0
        if unequal > _UNEQUAL:
            self._found.notes.append(
                f"First tokens of equal prompts came up to {unequal:.0%} apart: other requests or the network were in "
                "the way. Measure again from nearby and without other load."
            )


def _timed_s(answer: Answer) -> float:
    """The mean time between tokens, or to the only one, s."""
    if len(answer.times_s) == 1:
        return float(answer.times_s[0]) - answer.sent_s
    return float(answer.times_s[-1] - answer.times_s[0]) / (answer.output_tokens - 1)


def _worst(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that says most: a refusal before answers of no use, and those before faults that pass."""
    for kind in (SpecError, UnusableAnswersError):
        for error in errors.exceptions:
            if isinstance(error, kind):
                return error
    return errors.exceptions[0]
