"""The ways in which servers take a completion request, from the exact one of vLLM and SGLang to plain chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dialect:
    """One way of asking. ``ids``: the prompt as token ids; ``exact_length``: knobs that forbid an early end."""

    path: str
    ids: bool
    exact_length: bool
    usage: bool
    usage_by_chunk: bool

    @property
    def chat(self) -> bool:
        return self.path.startswith("chat/")

    def body(self, model: str, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
        """The JSON body of a streaming request for ``max_tokens`` output tokens."""
        body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "stream": True, "temperature": 0.0}
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.exact_length:
            body |= {"ignore_eos": True, "min_tokens": max_tokens}
        if self.usage:
            body["stream_options"] = {"include_usage": True}
            if self.usage_by_chunk:
                body["stream_options"]["continuous_usage_stats"] = True
        return body

    @property
    def said(self) -> str:
        """The dialect in words."""
        prompts = "prompts as token ids" if self.ids else "prompts as words"
        ends = "ends forced with ignore_eos" if self.exact_length else "no ignore_eos, answers may end early"
        return f"/v1/{self.path}, {prompts}, {ends}"


_COMPLETIONS, _CHAT = "completions", "chat/completions"
DIALECTS = (
    Dialect(_COMPLETIONS, ids=True, exact_length=True, usage=True, usage_by_chunk=True),
    Dialect(_COMPLETIONS, ids=True, exact_length=True, usage=True, usage_by_chunk=False),
    Dialect(_COMPLETIONS, ids=False, exact_length=True, usage=True, usage_by_chunk=False),
    Dialect(_COMPLETIONS, ids=True, exact_length=False, usage=True, usage_by_chunk=False),
    Dialect(_COMPLETIONS, ids=False, exact_length=False, usage=True, usage_by_chunk=False),
    Dialect(_COMPLETIONS, ids=True, exact_length=False, usage=False, usage_by_chunk=False),
    Dialect(_CHAT, ids=False, exact_length=True, usage=True, usage_by_chunk=True),
    Dialect(_CHAT, ids=False, exact_length=True, usage=True, usage_by_chunk=False),
    Dialect(_CHAT, ids=False, exact_length=False, usage=True, usage_by_chunk=False),
)
"""Tried in this order until the server takes one. Not words without usage counts: their length is not known."""
