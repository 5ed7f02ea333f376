"""The changes of a what-if, one after the other: ties, growth, burstiness, agentic depth, lengths, prefix sharing. Each
says what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from replay.errors import FieldError, TraceError
from replay.specs_transform import Transform
from replay.traces.agents import deepen
from replay.traces.arrivals import burst_sentence, clock_step, reshape_gaps, spread_ties
from replay.traces.chains import check_extent
from replay.traces.checks import no_blocks_to_share
from replay.traces.draft import Draft
from replay.traces.extent import MAX_REQUESTS, check_requests
from replay.traces.growth import compress, shift_copies, superpose
from replay.traces.lengths import fit_blocks, reshape, reshape_note, scale_sharing
from replay.workload import MAX_SPAN_S

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NS = 10**9


def change(draft: Draft, transform: Transform, seed: int, max_requests: int = MAX_REQUESTS) -> tuple[Draft, list[str]]:
    """The draft after all changes of ``transform``, and a sentence on each for the report. The same seed gives the
    same arrays.

    Raises:
        TraceError: ``workload.empty``: growth leaves nothing; ``workload.too_long``: stretched beyond what picoseconds
            can count; ``workload.prefix_sharing``: there are no block ids to scale; ``workload.too_many_requests``.
    """
    notes: list[str] = []
    if transform.spread != "keep":
        draft = _spread(draft, transform.spread, seed, notes)
    if transform.growth != 1.0 or transform.tenant_growth:
        factor = _factors(draft, transform)
        check_requests(float(factor.sum()) * transform.agent_steps, transform, max_requests)
        draft = _grow(draft, transform, factor, seed, notes)
    else:
        check_requests(draft.n * transform.agent_steps, transform, max_requests)
    if transform.burstiness != 1.0:
        draft = _reshape_bursts(draft, transform, notes)
    if transform.agent_steps > 1:
        draft, note = deepen(draft, transform.agent_steps, transform.agent_pause_s, transform.agent_step_tokens)
        notes.append(note)
        check_extent(draft.arrival_ns)
    draft = _resize(draft, transform, notes)
    if transform.prefix_sharing < 1.0:
        draft = _share_less(draft, transform.prefix_sharing, seed, notes)
    return draft, notes


def _heads(draft: Draft) -> Int64Array:
    """The requests with an arrival of their own."""
    return np.flatnonzero(draft.root == np.arange(draft.n))


def _with_heads(draft: Draft, heads: Int64Array, times_ns: Int64Array) -> Draft:
    moved = draft.arrival_ns.copy()
    moved[heads] = times_ns
    return draft.heads_moved(moved)


def _spread(draft: Draft, how: Literal["even", "uniform"], seed: int, notes: list[str]) -> Draft:
    heads = _heads(draft)
    times = draft.arrival_ns[heads]
    step_ns = clock_step(times)
    ties = int((np.diff(times) == 0).sum())
    if ties == 0 or step_ns == 0:
        notes.append("No two requests of the window share a tick of the clock: there is nothing to spread.")
        return draft
    span_ns = int(times[-1]) + step_ns if draft.to_last else draft.span_ns
    times = spread_ties(times, how, step_ns, max(span_ns, int(times[-1]) + 1), seed)
    words = "evenly" if how == "even" else f"at random (uniform, seed {seed})"
    note = (
        f"The clock moves in steps of {step_ns / NS:g} s and {ties:,} requests share their time with the one before: "
        f"requests of a tick are laid over it {words}, an assumption."
    )
    after = _with_heads(draft, heads, times)
    note += burst_sentence(draft.arrival_ns, draft.span_ns, after.arrival_ns, span_ns)
    notes.append(note)
    return replace(after, span_ns=span_ns, to_last=False)


def _factors(draft: Draft, transform: Transform) -> FloatArray:
    """Of each request, how many copies it has on average, shape (n,); chains go with their heads."""
    factor = np.full(draft.n, 1.0 if transform.growth_method == "compress" else transform.growth)
    if transform.tenant_growth and draft.tenant is not None:
        of_name = np.array([transform.tenant_growth.get(name, 1.0) for name in draft.tenant.names])
        factor = (factor * of_name[draft.tenant.code])[draft.root]
    return factor


def _grow(draft: Draft, transform: Transform, factor: FloatArray, seed: int, notes: list[str]) -> Draft:
    """Copies first, where tenants or a method ask for them, then compression."""
    compressed = transform.growth_method == "compress"
    said = [] if compressed or transform.growth == 1.0 else [f"Load times {transform.growth:g}"]
    if transform.tenant_growth and draft.tenant is not None:
        parts = ", ".join(f"{name} times {times:g}" for name, times in sorted(transform.tenant_growth.items()))
        said.append(f"{'tenant' if said else 'Tenant'} {parts}")
    if said:
        words = ", ".join(said)
        if transform.growth_method == "shift":
            grown = shift_copies(
                draft.arrival_ns, draft.root, factor, words, draft.span_ns, seed, transform.growth_shift_s
            )
        else:
            grown = superpose(draft.arrival_ns, draft.root, factor, words, draft.span_ns, seed)
        notes.append(grown.note)
        if len(grown.index) == 0:
            cure = "choose a larger growth or a longer window"
            raise TraceError(
                "workload.empty",
                f"growth {transform.growth:g} leaves no request",
                [FieldError(cure, field="transform.growth", cure=cure)],
            )
        draft = draft.take(grown.index, grown.times_ns, grown.copy, grown.wrapped)
        if draft.prefix is not None and grown.copy.any():
            notes.append(
                "Copies share no prompt prefix with the requests they copy, so prefix reuse is not overstated."
            )
    if compressed and transform.growth != 1.0:
        times, order, span_ns, note = compress(draft.arrival_ns, draft.root, transform.growth, draft.span_ns)
        notes.append(note)
        if max(span_ns, int(times[-1])) > MAX_SPAN_S * NS:
            cure = f"choose a larger growth or a shorter window: at most {MAX_SPAN_S // 86_400} days after stretching"
            raise TraceError(
                "workload.too_long",
                f"stretched, the window is {span_ns / NS / 86_400:,.1f} days",
                [FieldError(cure, field="transform.growth", rule="max_span", cure=cure)],
            )
        draft = replace(draft.take(order, times), span_ns=span_ns)
    return draft


def _reshape_bursts(draft: Draft, transform: Transform, notes: list[str]) -> Draft:
    heads = _heads(draft)
    power, width_s = transform.burstiness, transform.burstiness_window_s
    width_ns = max(round(width_s * NS), 1)
    after = _with_heads(draft, heads, reshape_gaps(draft.arrival_ns[heads], draft.span_ns, power, width_ns))
    note = (
        f"Burstiness: the gaps between arrivals to the power {power:g}, within windows of {width_s:g} s, each of which "
        "keeps its number of requests: the same mean rate and rate curve."
    )
    notes.append(note + burst_sentence(draft.arrival_ns, draft.span_ns, after.arrival_ns, draft.span_ns))
    return after


def _resize(draft: Draft, transform: Transform, notes: list[str]) -> Draft:
    prompt_change = (transform.prompt_scale, transform.prompt_shift_tokens, transform.prompt_cap_tokens)
    output_change = (transform.output_scale, transform.output_shift_tokens, transform.output_cap_tokens)
    if prompt_change != (1.0, 0, None):
        prompt = reshape(draft.prompt, *prompt_change)
        notes.append(reshape_note("Prompt", draft.prompt, prompt, *prompt_change))
        if draft.prefix is not None:
            draft = replace(draft, prefix=fit_blocks(draft.prefix, draft.prompt, prompt))
            notes.append(
                "Prefix blocks go with the prompts: a shorter one loses its last blocks, a longer one goes on with "
                "text that it shares with nobody."
            )
        draft = replace(draft, prompt=prompt)
    if output_change != (1.0, 0, None):
        output = reshape(draft.output, *output_change)
        notes.append(reshape_note("Output", draft.output, output, *output_change))
        declared = draft.declared
        if declared is not None:
            declared = np.where(declared > 0, reshape(declared, *output_change), declared)
        draft = replace(draft, output=output, declared=declared)
    return draft


def _share_less(draft: Draft, share: float, seed: int, notes: list[str]) -> Draft:
    if draft.prefix is None:
        raise no_blocks_to_share()
    prefix, note = scale_sharing(draft.prefix, share, seed)
    notes.append(note)
    return replace(draft, prefix=prefix)
