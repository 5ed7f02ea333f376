"""A short experiment on a running server: which requests tell a calibration's parameters apart, within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from replay.calibration.step_fit import predicted_s
from replay.calibration.steps import Steps
from replay.deployment import Deployment
from replay.errors import FieldError, SpecError

Kind = Literal["single", "decode", "mixed"]

STEADY_STEPS = 64
"""Steps in which all requests of a part decode, where nothing else is wanted."""
_KV_SHARE = 0.9
"""Of the KV cache at most, so that no request is preempted."""
_STEPS_PER_ADDED = 8
"""Decode steps planned for each added prompt: its way to the engine, its own step, its answer's way back."""
PROBE_TOKENS = 400
"""What finding out how the server takes requests costs at most."""
ROUND_TRIP_S = 0.02
"""A guess of the time before and after the engine, for estimates alone."""


@dataclass(frozen=True)
class Part:
    """Requests that are sent together, or one after the other (``single``, and the added prompts of ``mixed``)."""

    kind: Kind
    requests: int
    """At once; of ``single``, one after the other."""
    prompt_tokens: int
    output_tokens: int
    added: int = 0
    """Prompts of ``added_tokens`` that join the decoding requests one by one; each is answered with one token."""
    added_tokens: int = 0

    @property
    def sent(self) -> int:
        """Requests in all."""
        return self.requests + self.added

    @property
    def at_once(self) -> int:
        """Requests that run at the same time."""
        return 1 if self.kind == "single" else self.requests + (self.added > 0)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all requests."""
        return self.requests * (self.prompt_tokens + self.output_tokens) + self.added * (self.added_tokens + 1)

    @property
    def label(self) -> str:
        """The part in words."""
        if self.kind == "single":
            return f"{self.requests} x one prompt of {self.prompt_tokens} tokens alone"
        what = f"{self.requests} at once with prompts of {self.prompt_tokens}, {self.output_tokens} tokens each"
        return f"{what}, joined by {self.added} x {self.added_tokens}" if self.added else what

    @property
    def identifies(self) -> str:
        """What the part is for."""
        if self.kind == "single":
            return "prefill; the time before the engine"
        if self.kind == "mixed":
            return "prefill and decode in one step, apart from the time before the engine"
        if self.requests == 1:
            return "a step's fixed time: weights, host"
        return "decode attention" if self.prompt_tokens >= 1024 else "the time of one decode more in a step"


@dataclass(frozen=True)
class Plan:
    """Parts in the order of their weight: what ends early has measured the most telling ones."""

    parts: tuple[Part, ...]
    estimated_s: tuple[float, ...]
    """By the shipped step times, for each part."""
    left_out: tuple[str, ...]
    """Parts that the budget or the deployment has no room for, each with the reason."""

    @property
    def requests(self) -> int:
        return sum(part.sent for part in self.parts)

    @property
    def tokens(self) -> int:
        """Those of the first requests included, which find out how the server wants to be asked."""
        return PROBE_TOKENS + sum(part.tokens for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(self.estimated_s)


def plan_experiment(
    deployment: Deployment, *, max_tokens: int, max_seconds: float, longest_tokens: int | None = None
) -> Plan:
    """The parts that fit the deployment and the budget. ``longest_tokens``: the server's own limit on a context.

    Raises:
        SpecError: ``endpoint.deployment`` where step times cannot be told from outside; ``endpoint.budget`` where not
            even one part of each kind that is needed fits.
    """
    _check(deployment)
    longest = min(deployment.engine.max_model_len, longest_tokens or deployment.engine.max_model_len)
    parts: list[Part] = []
    estimates: list[float] = []
    left_out: list[str] = []
    tokens, seconds = PROBE_TOKENS, 0.0
    for part in _wanted(deployment):
        reason = _no_room(part, deployment, longest)
        estimate = 0.0 if reason else estimated_s(part, deployment)
        if not reason and tokens + part.tokens > max_tokens:
            reason = f"needs {part.tokens:,} tokens, more than --max-tokens leaves"
        elif not reason and seconds + estimate > max_seconds:
            reason = f"needs about {estimate:.1f} s, more than --max-seconds leaves"
        if reason:
            left_out.append(f"{part.label}: {reason}")
            continue
        parts.append(part)
        estimates.append(estimate)
        tokens, seconds = tokens + part.tokens, seconds + estimate
    if {part.kind for part in parts} >= {"single", "decode"}:
        return Plan(tuple(parts), tuple(estimates), tuple(left_out))
    detail = f"no experiment fits {max_tokens:,} tokens and {max_seconds:g} s: {left_out[0]}"
    cure = "raise --max-tokens and --max-seconds, or --max-model-len where the server allows longer contexts"
    raise SpecError("endpoint.budget", detail, [FieldError(detail, field="max_tokens", cure=cure)])


def _check(deployment: Deployment) -> None:
    engine = deployment.engine
    for bad, knob, detail, cure in (
        (
            engine.num_speculative_tokens > 0,
            "num_speculative_tokens",
            "with speculative decoding a step gives several tokens, so that gaps between tokens are no step times",
            "measure the server without speculative decoding",
        ),
        (
            engine.data_parallel_size > 1,
            "data_parallel_size",
            "requests spread over data-parallel ranks, so that the batch of a step is not known from outside",
            "measure one rank, and leave data_parallel_size out",
        ),
        (
            engine.scheduler in ("static", "orca", "vllm-v0"),
            "preset",
            f"the {engine.scheduler} scheduler does not stream one token a step of all running requests",
            "measure a server with continuous batching, and name its engine",
        ),
    ):
        if bad:
            raise SpecError("endpoint.deployment", detail, [FieldError(detail, field=f"engine.{knob}", cure=cure)])


def _wanted(deployment: Deployment) -> Sequence[Part]:
    """All parts worth their time, the most telling first."""
    limit = step_limit(deployment)
    decode = [_decode(limit, *pair) for pair in ((1, 128), (16, 128), (8, 2048), (32, 128), (16, 2048))]
    more = [_decode(limit, *pair) for pair in ((4, 4096), (64, 512), (1, 8192), (32, 2048), (128, 128))]
    mixed = [_mixed(limit, *triple) for triple in ((8, 128, 1024), (16, 128, 512), (16, 128, 2048))]
    single = [Part("single", 4, length, 1) for length in (128, 2048, 512, 4096, 1024, 256, 8192)]
    return [
        single[0], decode[0], single[1], decode[1], decode[2], single[2], mixed[0], decode[3], single[3], decode[4],
        mixed[1], single[4], more[0], single[5], more[1], mixed[2], more[2], single[6], more[3], more[4],
    ]  # fmt: skip


def step_limit(deployment: Deployment) -> int:
    """Tokens of one step at most."""
    return len(deployment.step_time.rest_ps) - 1


def _decode(limit: int, requests: int, prompt_tokens: int) -> Part:
    start = -(-requests * prompt_tokens // limit) + requests // 4 + 8
    return Part("decode", requests, prompt_tokens, STEADY_STEPS + start)


def _mixed(limit: int, requests: int, prompt_tokens: int, added_tokens: int) -> Part:
    added = 6
    start = -(-requests * prompt_tokens // limit) + requests // 4 + 8
    return Part("mixed", requests, prompt_tokens, start + added * _STEPS_PER_ADDED, added, added_tokens)


def _no_room(part: Part, deployment: Deployment, longest: int) -> str:
    """Why the deployment cannot serve the part as it is meant; empty: it can."""
    engine = deployment.engine
    context = max(part.prompt_tokens + part.output_tokens, part.added_tokens + 1)
    if context > longest:
        return f"contexts of {context} tokens are longer than the {longest} that are served"
    if part.at_once > engine.max_num_seqs:
        return f"{part.at_once} requests at once are more than max_num_seqs {engine.max_num_seqs}"
    blocks = deployment.most_blocks(np.array([part.prompt_tokens + part.output_tokens, part.added_tokens + 1]))
    if part.at_once * int(blocks[0]) + int(blocks[1]) > _KV_SHARE * deployment.usable_blocks:
        return f"{part.at_once} contexts of {part.prompt_tokens + part.output_tokens} tokens do not fit the KV cache"
    if part.kind == "mixed" and engine.scheduler != "vllm":
        return f"{engine.scheduler} does not put prompts and decodes into one step"
    if part.kind == "mixed" and part.added_tokens + part.requests > _longest_chunk(deployment):
        return f"the prompt would be cut into several steps (at most {_longest_chunk(deployment)} tokens a step)"
    return ""


def _longest_chunk(deployment: Deployment) -> int:
    threshold = deployment.engine.long_prefill_token_threshold
    return min(step_limit(deployment), threshold or step_limit(deployment))


def estimated_s(part: Part, deployment: Deployment) -> float:
    """How long a part takes by the deployment's step times, s."""
    alone_s = _seconds(deployment, is_ttft=True, prefill=part.prompt_tokens)
    if part.kind == "single":
        return part.requests * (alone_s + ROUND_TRIP_S)
    context = part.requests * (part.prompt_tokens + part.output_tokens // 2)
    step_s = _seconds(deployment, decodes=part.requests, context=context)
    joined_s = 0.0
    if part.added:
        joined_s = _seconds(deployment, prefill=part.added_tokens, decodes=part.requests, context=context) - step_s
    return part.requests * alone_s + part.output_tokens * step_s + part.added * max(joined_s, 0.0) + ROUND_TRIP_S


def _seconds(
    deployment: Deployment, *, is_ttft: bool = False, prefill: int = 0, decodes: int = 0, context: int = 0
) -> float:
    step = Steps(
        is_ttft=np.array([is_ttft]),
        prefill_tokens=np.array([prefill]),
        cached_tokens=np.array([0]),
        decode_requests=np.array([decodes]),
        decode_context_tokens=np.array([context]),
        time_s=np.ones(1),
    )
    return float(predicted_s(step, deployment.step_time, deployment.engine)[0])
