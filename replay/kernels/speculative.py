"""Speculative decoding: drafts that are checked in one step, and how many of them are accepted.

A decoding request is given its missing token and up to ``speculative_tokens`` drafts. At the step's end the drafts up
to the first rejected one are kept, and the step gives one more token of its own; what was computed behind them is taken
back, while its blocks stay (engine semantics 2.1 and 5).

Probabilities are whole numbers of ``ONE``, so no step of it depends on the machine.
"""

from __future__ import annotations

from replay.kernels.jit import inlined, inner
from replay.kernels.state import LAW_DECODE_REQUEST, ONE, Config, State, StepTimes
from replay.kernels.steptime import decode_attention_ps

_WORD = 0xFFFFFFFF


@inner
def scrambled(x: int) -> int:
    """Mixes 32 bits: multiplications by odd numbers below 2 ** 31, so that no product leaves 63 bits."""
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _WORD
    x ^= x >> 15
    x = (x * 0x31848BAB) & _WORD
    return x ^ (x >> 14)


@inner
def draw(seed: int, r: int, position: int) -> int:
    """A number below ``ONE`` for the output token ``position`` of request ``r``: the same whenever it is asked for."""
    return scrambled(scrambled(scrambled(seed & _WORD) ^ int(r)) ^ int(position)) % ONE


@inner
def accepted_drafts(config: Config, state: State, slot: int, drafts: int) -> int:
    """How many of a slot's drafts are accepted: drawn token by token, or as the expectation adds up."""
    slots, speculation = state.slots, state.speculation
    accepted = 0
    if config.expected_acceptance:
        share = ONE
        for i in range(drafts):
            share = share * speculation.acceptance[i] // ONE
            speculation.owed[slot] += share
        accepted = speculation.owed[slot] // ONE
        speculation.owed[slot] -= accepted * ONE
        return accepted
    r = slots.request[slot]
    position = state.outcome.generated[r] + slots.granted[slot] - slots.left[slot]
    while (
        accepted < drafts and draw(config.speculation_seed, r, position + accepted) < speculation.acceptance[accepted]
    ):
        accepted += 1
    return accepted


@inner
def verify(config: Config, state: State, slot: int) -> int:
    """The drafts of a slot were checked and new ones are proposed; returns how many tokens come beside the step's own.

    Fewer than were accepted where the request ends first.
    """
    slots, speculation = state.slots, state.speculation
    drafts = speculation.drafts[slot]
    accepted = accepted_drafts(config, state, slot, drafts)
    slots.computed[slot] -= drafts - accepted
    speculation.drafts[slot] = config.speculative_tokens
    more = min(accepted, slots.left[slot] - 1)
    slots.unscheduled[slot] -= more
    return more


@inner
def start_speculating(state: State, slot: int) -> None:
    """A slot was given to a request: nothing is proposed before its first token; expectations are rounded to the
    nearest."""
    state.speculation.drafts[slot] = 0
    state.speculation.owed[slot] = ONE // 2


@inlined
def draft_ps(config: Config, times: StepTimes, drafts: int, decodes: int, context_tokens: int) -> int:
    """What ``drafts`` drafts add to a step whose ``decodes`` requests read ``context_tokens``: a sampled row each, and
    ``speculative_tokens`` passes of the draft model, each a fixed time and a share of the model's own decode step."""
    row_ps = times.law[LAW_DECODE_REQUEST]
    step = times.rest_ps[decodes] + row_ps * decodes + decode_attention_ps(times, decodes, context_tokens)
    a_pass = config.draft_step_ps + step // 1000 * config.draft_step_share // 1000
    return row_ps * drafts + config.speculative_tokens * a_pass
