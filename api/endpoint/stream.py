"""A streamed completion: server-sent events with their times, and what they say once all have come."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from api.endpoint.faults import PassingFaultError, said
from replay.experiment.answers import Answer, UnusableAnswersError

_DONE = b"[DONE]"


class EventStream:
    """Splits bytes into events; JSON is read afterwards, so that reading costs little while others stream too."""

    def __init__(self) -> None:
        self._rest = b""
        self.events: list[tuple[float, bytes]] = []
        """When the event was complete, s, and its data."""
        self.done = False

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == _DONE:
                self.done = True
            elif payload:
                self.events.append((now_s, payload))


@dataclass
class _Said:
    """What the events of a stream say together."""

    times_s: list[float] = field(default_factory=list)
    counted: list[int | None] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    last_is_empty: bool = False

    def add(self, now_s: float, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        for choice in event.get("choices") or ():
            ended = choice.get("finish_reason")
            text = _text(choice)
            if text is None and not ended:
                continue  # the role alone, which chat servers send first
            self.finish = ended or self.finish
            self.last_is_empty = not text and bool(ended)
            self.times_s.append(now_s)
            self.counted.append(_count(usage, "completion_tokens"))


def answer_of(
    stream: EventStream, sent_s: float, max_tokens: int, prompt_ids: int | None, secret: str | None
) -> Answer:
    """The answer that a stream holds. ``prompt_ids``: length of the prompt where it was sent as token ids.

    Raises:
        PassingFaultError: a stream that was cut or ends in an error.
        UnusableAnswersError: token counts that cannot be known.
    """
    found = _Said()
    for now_s, payload in stream.events:
        found.add(now_s, _loaded(payload, secret))
    if not stream.done and not (found.finish and found.usage):
        raise PassingFaultError("the stream was cut before its end")
    total = _count(found.usage, "completion_tokens")
    if total is None and found.finish == "length":
        total = max_tokens
    prompt = _count(found.usage, "prompt_tokens") or prompt_ids
    if total is None or prompt is None:
        raise UnusableAnswersError(
            f"the server does not say how many tokens the {'answer' if total is None else 'prompt'} has",
            "measure a server that takes stream_options.include_usage",
            everywhere=True,
        )
    if total == 0 or not found.times_s:
        raise UnusableAnswersError("the answer holds no token", "check what the model answers to any prompt")
    if total > max_tokens:
        raise too_long(total, max_tokens)
    times, tokens = _tokens(found, total)
    details = found.usage.get("prompt_tokens_details")
    return Answer(sent_s, np.array(times), np.array(tokens), prompt, min(_count(details, "cached_tokens") or 0, prompt))


def runs_on(stream: EventStream, max_tokens: int) -> bool:
    """Whether more events came than the answer may have: tokens, a role, an end and the usage."""
    return len(stream.events) > max_tokens + 8


def too_long(tokens: int, max_tokens: int) -> UnusableAnswersError:
    """The refusal of a server that does not stop where it was told to."""
    return UnusableAnswersError(
        f"an answer of {tokens} tokens or more, where max_tokens was {max_tokens}: the server ignores the limit",
        "name the address of the engine itself, not of a gateway that rewrites requests",
        everywhere=True,
    )


def _loaded(payload: bytes, secret: str | None) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise PassingFaultError(f"an event is no JSON: {said(repr(payload[:80]), secret)}") from error
    if not isinstance(event, dict):
        raise PassingFaultError(f"an event is no JSON object: {said(repr(payload[:80]), secret)}")
    if event.get("error"):
        raise PassingFaultError(f"the stream ended in an error: {said(str(event['error']), secret)}")
    return event


def _text(choice: dict[str, Any]) -> str | None:
    """The text of a chunk; ``None`` for one that announces the role alone."""
    if "delta" not in choice:
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    delta = choice["delta"] or {}
    for name in ("content", "reasoning_content", "reasoning"):
        if isinstance(delta.get(name), str) and (delta[name] or "role" not in delta):
            return str(delta[name])
    return None if "role" in delta else ""


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


def _tokens(found: _Said, total: int) -> tuple[list[float], list[int]]:
    """Chunks that brought tokens: when, and the tokens up to each."""
    times = found.times_s
    if all(count is not None for count in found.counted):
        steps = [(now_s, count) for now_s, count in zip(times, found.counted, strict=True) if count]
        grown = [one for before, one in zip([(0.0, 0), *steps], steps, strict=False) if one[1] > before[1]]
        if grown and grown[-1][1] == total:
            return [now_s for now_s, _ in grown], [count for _, count in grown]
    if found.last_is_empty and len(times) == total + 1:
        times = times[:-1]
    if len(times) == total:
        return times, list(range(1, total + 1))
    if len(times) == 1:
        return times, [total]
    raise UnusableAnswersError(
        f"{total} tokens came in {len(times)} chunks, and the server does not say how many in each",
        "measure the server without speculative decoding and with a stream interval of 1",
        everywhere=True,
    )
