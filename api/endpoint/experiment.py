"""Carries out a planned experiment on a server, and keeps what it measured whatever happens."""

from __future__ import annotations

import asyncio
import time
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
_MOST_CPU_SHARE = 0.7
"""Above it this machine, not the server, says when tokens are seen to arrive."""
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
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """``cpu_s``: processor time of this process, s."""
        self._endpoint = endpoint
        self._deployment = deployment
        self._budget = budget
        self._found = found
        self._progress = progress
        self._cpu_s = cpu_s
        self._clock = asyncio.get_running_loop()
        self._begin_s = self._clock.time()
        self._unequal: list[float] = []
        self._ended_early = False
        self._cached = self._prompted = 0

    async def run(self, served_model: str | None) -> None:
        """Measures until the plan, the time or the tokens end.

        Raises:
            SpecError: where the server cannot be measured, with the cure; what was measured before stays in the
                findings.
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
        taken_s = planned_s = 0.0
        failures = 0
        total_s = sum(plan.estimated_s)
        done_s = 0.0
        for index, (part, estimate_s) in enumerate(zip(plan.parts, plan.estimated_s, strict=True)):
            self._progress(part.label, done_s / total_s)
            done_s += estimate_s
            slowness = max(1.0, taken_s / planned_s) if planned_s else 1.0
            if self._left_s() < estimate_s * slowness:
                self._lose(part, "would not end within --max-seconds")
                continue
            if failures >= _FAILURES_TO_STOP:
                rest = len(plan.parts) - index
                self._found.lost.append(f"{rest} more parts: not begun, as {failures} in a row had failed")
                break
            since_s = self._clock.time()
            try:
                async with asyncio.timeout(self._left_s()):
                    await self._measure(part)
            except TimeoutError:
                self._lose(part, "cut off at --max-seconds")
                break
            except PassingFaultError as error:
                failures += 1
                self._lose(part, error.detail)
            except UnusableAnswersError as error:
                failures = 0
                if error.everywhere:
                    raise
                self._lose(part, str(error))
            else:
                failures = 0
                taken_s, planned_s = taken_s + self._clock.time() - since_s, planned_s + estimate_s
        self._progress("fitting", 1.0)

    async def _measure(self, part: Part) -> None:
        if part.kind == "single":
            await self._single(part)
            return
        since_s, since_cpu_s = self._clock.time(), self._cpu_s()
        answers, added = await self._tried(lambda: self._together(part))
        share = (self._cpu_s() - since_cpu_s) / (self._clock.time() - since_s)
        if share > _MOST_CPU_SHARE and part.requests > 1:
            raise UnusableAnswersError(
                f"this machine was busy with reading for {share:.0%} of the time, so that not the server set the pace",
                "measure from a faster machine, or one with nothing else to do",
            )
        self._found.rows += rows_of(part, answers, added)
        self._ended_early |= any(answer.output_tokens < part.output_tokens for answer in answers)

    async def _single(self, part: Part) -> None:
        rows: list[Row] = []
        for _ in range(part.requests):
            answer = await self._tried(lambda: self._one(part.prompt_tokens, 1))
            rows += rows_of(part, [answer])
            self._found.rows.append(rows[-1])
        times = [row.time_s for row in rows]
        self._unequal.append(max(times) / min(times) - 1)

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

    async def _tried(self, action: Callable[[], Awaitable[T]]) -> T:
        """The action's result, with waits between tries as the server asks for."""
        for number in range(1, _TRIES + 1):
            if self._endpoint.spent_tokens > self._budget.max_tokens:
                raise PassingFaultError("--max-tokens is used up by repeated requests")
            try:
                return await action()
            except PassingFaultError as error:
                wait_s = _FIRST_WAIT_S * 2**number if error.retry_after_s is None else error.retry_after_s
                if number == _TRIES:
                    raise
                if wait_s > self._left_s():
                    waits = f"; the wait of {wait_s:g} s that it asks for is longer than --max-seconds leaves"
                    raise PassingFaultError(error.detail + waits) from error
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _left_s(self) -> float:
        return self._begin_s + self._budget.max_seconds - self._clock.time()

    def _lose(self, part: Part, reason: str) -> None:
        self._found.lost.append(f"{part.label}: {reason}")

    def _say_conditions(self) -> None:
        """Notes on what the answers say of the server."""
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


def _worst(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that says most: a refusal before answers of no use, and those before faults that pass."""
    for kind in (SpecError, UnusableAnswersError):
        for error in errors.exceptions:
            if isinstance(error, kind):
                return error
    return errors.exceptions[0]
