"""Speculative decoding's knobs: what they mean together, and what the kernels get of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.kernels.state import ONE
from replay.knobs import Knob, refuse

if TYPE_CHECKING:
    from replay.engines import EngineConfig

METHODS = ("eagle", "mtp", "draft_model", "ngram")
MODES = ("sampled", "expected")
KNOBS = {
    "num_speculative_tokens": Knob(int, 0, 32),
    "speculative_method": Knob(str, choices=METHODS),
    "acceptance_rate": Knob(str),
    "acceptance_mode": Knob(str, choices=MODES),
    "draft_step_s": Knob(float, -1.0, 10.0),
}
PS_PER_S = 10**12
_MILLION = 10**6


class Drafting(NamedTuple):
    """One pass of the draft model over a batch: a fixed time, and a part of the model's own decode step."""

    step_ps: int = 0
    step_share: int = 0
    """In millionths."""


def acceptance(engine: EngineConfig) -> tuple[int, ...]:
    """By place of a draft: the probability, in ``ONE``, that it is accepted once all before it were.

    One number in ``acceptance_rate`` is that probability at every place. Several are the shares of drafts whose first,
    second, ... token was accepted, as vLLM's log prints them, so each is divided by the one before.

    Raises:
        SpecError: ``acceptance_rate`` is missing, no number from 0 to 1, grows, or has not one figure for each place.
    """
    places = engine.num_speculative_tokens
    shares = [_share(text) for text in engine.acceptance_rate.split(",")]
    if len(shares) == 1:
        return (round(shares[0] * ONE),) * places
    if len(shares) != places:
        detail = f"acceptance_rate has {len(shares)} figures for num_speculative_tokens {places}"
        raise refuse("acceptance_rate", detail, f"give one figure for all drafts, or {places} separated by commas")
    conditional, before = [], 1.0
    for share in shares:
        if share > before:
            detail = f"acceptance_rate grows from {before:g} to {share:g}: a draft counts only if those before it do"
            raise refuse("acceptance_rate", detail, "give the shares per position as vLLM's log prints them")
        conditional.append(round(share / before * ONE) if before > 0 else 0)
        before = share
    return tuple(conditional)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if 0 <= share <= 1:
        return share
    cure = "set acceptance_rate to the probability that a draft token is accepted, from 0 to 1 (vLLM's log prints it)"
    raise refuse("acceptance_rate", f"acceptance_rate holds {text.strip()!r}, which is no share from 0 to 1", cure)


def drafting(engine: EngineConfig, layers: int) -> Drafting:
    """What a draft pass takes: ``draft_step_s``, or by the method: one of the model's ``layers`` layers, or nothing."""
    if engine.draft_step_s >= 0:
        return Drafting(step_ps=round(engine.draft_step_s * PS_PER_S))
    return Drafting() if engine.speculative_method == "ngram" else Drafting(step_share=_MILLION // layers)


def check_speculation(config: EngineConfig) -> None:
    """Refuses knobs of speculative decoding that contradict each other, or that act on nothing."""
    if config.num_speculative_tokens == 0:
        defaults = type(config).__dataclass_fields__
        for name in KNOBS:
            if getattr(config, name) != defaults[name].default:
                cure = f"set num_speculative_tokens to 1 or more, or leave {name} out"
                raise refuse(name, f"{name} acts on speculative decoding, which is off", cure)
        return
    if not config.acceptance_rate:
        cure = "set acceptance_rate, e.g. 0.7, or one share for each position as vLLM's log prints them: 0.8,0.6,0.45"
        detail = "num_speculative_tokens needs acceptance_rate: how many drafts are accepted depends on your texts"
        raise refuse("acceptance_rate", detail, cure)
    acceptance(config)
    if config.speculative_method == "draft_model" and config.draft_step_s < 0:
        cure = "set draft_step_s to the seconds of one pass of the draft model"
        raise refuse("draft_step_s", "a draft model of its own needs draft_step_s: its size is not known here", cure)
    if config.async_scheduling:
        detail = "speculative decoding is replayed with synchronous scheduling only"
        raise refuse("async_scheduling", detail, "leave async_scheduling out, or set it to false")


def speculation_notes(config: EngineConfig) -> tuple[str, ...]:
    """What a result says about its assumptions."""
    if config.num_speculative_tokens == 0:
        return ()
    return (
        "speculative decoding as read from the engine's source, not compared with recordings; scheduled synchronously, "
        "so host work is not hidden; memory of the draft model is not taken off the KV cache",
    )
