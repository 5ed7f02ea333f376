"""What a transform asks of a trace, checked against what the trace's report says of it: refused before a job is made.

No polars here: ``api`` checks requests with this module. A job checks the same by the rows themselves, with the same
sentences where it can; what only the rows tell is refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

import numpy as np

from replay.errors import FieldError, TraceError, curable
from replay.specs_transform import MixAlign, Transform
from replay.traces.labels import NO_LABEL
from replay.traces.report import IngestReport
from replay.traces.windows import find_window

NS = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED = 10
_MS = 10**6


@dataclass(frozen=True)
class MixFacts:
    """What decides whether a trace can be mixed with others, and how that is said."""

    last_ns: int
    """The last arrival, from the first."""
    start_epoch_ns: int | None
    """Of the first arrival; ``None``: the trace has no clock times."""
    closed_loop: bool
    """Whether requests follow others."""
    block_size: int | None
    """``None``: the trace has no prefix block ids."""
    sessions: bool


@dataclass(frozen=True)
class Facts(MixFacts):
    """What a report says of the trace (``facts_of``), its start to the millisecond; or of several mixed
    (``mixed_facts``)."""

    zone: str | None
    tenants: tuple[str, ...] | None
    """All tenants, most requests first, ``NO_LABEL`` for requests without one if any has one; ``None``: too many."""
    cache_hits: bool
    missing_prompt: float
    missing_output: float
    """Shares of requests."""
    step_s: float
    """Smallest step of the clock."""


def facts_of(report: IngestReport) -> Facts:
    """The facts of one trace."""
    profile, cleaning = report.profile, report.cleaning
    tenants: tuple[str, ...] | None = tuple(one.tenant for one in profile.top_tenants)
    if profile.tenants > len(profile.top_tenants):
        tenants = None
    elif tenants and sum(one.requests for one in profile.top_tenants) < profile.requests:
        tenants = (*tenants, NO_LABEL)
    start = None if profile.start_utc is None else datetime.fromisoformat(profile.start_utc)
    return Facts(
        last_ns=round(profile.span_s * NS),
        start_epoch_ns=None if start is None else (start - _EPOCH) // timedelta(microseconds=1) * 1000,
        zone=profile.heat_map_zone,
        closed_loop=cleaning.closed_loop_requests > 0,
        block_size=profile.prefix.block_size_tokens if profile.prefix is not None else None,
        sessions=profile.sessions > 0,
        tenants=tenants,
        cache_hits="cache_hit" in cleaning.status_counts,
        missing_prompt=cleaning.share_missing_prompt_tokens,
        missing_output=cleaning.share_missing_output_tokens,
        step_s=cleaning.clock_resolution_s or 0.0,
    )


def mixed_facts(base: Facts, others: Sequence[tuple[str, Facts]], align: MixAlign) -> Facts:
    """The facts of a trace with others (by name) mixed in, as ``replay.traces.mixing`` mixes them.

    Raises:
        TraceError: ``trace.mix``: they cannot be mixed.
    """
    if not others:
        return base
    parts = [base, *(facts for _, facts in others)]
    check_mix([("the trace", base), *others], align, slack_ns=_MS)
    starts = [facts.start_epoch_ns or 0 if align == "clock" else 0 for facts in parts]
    tenants: list[str] | None = list(base.tenants if base.tenants is not None else ())
    if tenants == []:
        tenants = [NO_LABEL]
    for name, facts in others:
        if tenants is None or facts.tenants is None or base.tenants is None:
            tenants = None
            break
        tenants += [name if one == NO_LABEL else f"{name}/{one}" for one in facts.tenants or (NO_LABEL,)]
    return Facts(
        last_ns=max(start + one.last_ns for start, one in zip(starts, parts, strict=True)) - min(starts),
        start_epoch_ns=min(starts) if align == "clock" else base.start_epoch_ns,
        zone=base.zone,
        closed_loop=False,
        block_size=next((one.block_size for one in parts if one.block_size), None),
        sessions=any(one.sessions for one in parts),
        tenants=None if tenants is None else tuple(tenants),
        cache_hits=any(one.cache_hits for one in parts),
        missing_prompt=min(one.missing_prompt for one in parts),
        missing_output=min(one.missing_output for one in parts),
        step_s=max(one.step_s for one in parts),
    )


def check_mix(parts: Sequence[tuple[str, MixFacts]], align: MixAlign, *, slack_ns: int = 0) -> None:
    """Refuses traces, by name, that cannot be one.

    Raises:
        TraceError: ``trace.mix``: two names are the same; requests that follow others; blocks of different sizes; by
            the clock, a trace without one, or traces that never overlap.
    """
    names = [name for name, _ in parts]
    if len(set(names)) < len(names):
        raise mix_refusal("two of the traces have the same name", "give each a name of its own")
    for name, facts in parts:
        if facts.closed_loop:
            raise mix_refusal(
                f"{name} has requests that are sent only when another has ended",
                "mix traces in which each request has an arrival of its own",
            )
        if align == "clock" and facts.start_epoch_ns is None:
            raise mix_refusal(f"{name} has no clock times", "align the traces by their start")
    sizes = sorted({facts.block_size for _, facts in parts if facts.block_size})
    if len(sizes) > 1:
        raise mix_refusal(
            f"the traces have prefix blocks of {' and '.join(map(str, sizes))} tokens",
            "mix traces with blocks of one size, or leave the block ids out of all but one",
        )
    if align == "clock":
        begin = max(facts.start_epoch_ns or 0 for _, facts in parts)
        end = min((facts.start_epoch_ns or 0) + facts.last_ns for _, facts in parts)
        if begin > end + slack_ns:
            raise mix_refusal(
                f"by their clocks {' and '.join(names)} never overlap: one begins after another has ended",
                "align the traces by their start",
            )


def mix_refusal(detail: str, cure: str) -> TraceError:
    """A refusal of ``trace.mix``."""
    return curable("trace.mix", detail, cure, "transform.mix_with")


def check_transform(transform: Transform, facts: Facts, label_of: Callable[[str], str] = lambda name: name) -> None:
    """Refuses what can be seen to fail. ``label_of`` gives the label that the trace has for a tenant that is named.

    Raises:
        TraceError: ``workload.window``, ``.too_long``, ``.tenants``, ``.prefix_sharing``, ``.prefix_from_sessions``,
            ``.empty``, ``.incomplete`` or ``.nothing_scored``.
    """
    windows = (transform.window_from, transform.window_until, transform.window_start_s, transform.busiest_window_s)
    # A report has times as floats of seconds and its start to the millisecond: what is that near is left to the job.
    slack_ns = 0 if all(one is None for one in windows) else _MS if facts.start_epoch_ns is not None else 2
    window = find_window(np.array([0, facts.last_ns + slack_ns]), transform, facts)
    if facts.tenants is not None:
        check_tenant_names(transform, facts.tenants, "trace", label_of)
    if transform.prefix_sharing < 1.0 and facts.block_size is None:
        raise no_blocks_to_share()
    if transform.prefix_from_sessions and (facts.block_size is not None or not facts.sessions):
        raise no_session_prefixes(has_sessions=facts.sessions)
    chosen = window.chosen or transform.tenants or transform.without_tenants or transform.mix_with
    if not chosen and not facts.cache_hits:
        _check_lengths(transform, facts)
    if not facts.closed_loop and transform.agent_steps == 1:
        span_s = window.span_s + (facts.step_s if transform.spread != "keep" else 0.0)
        span_s /= transform.growth if transform.growth_method == "compress" else 1.0
        if transform.warmup_s + transform.cooldown_s > span_s + slack_ns / NS:
            raise nothing_scored(transform, span_s)


def _check_lengths(transform: Transform, facts: Facts) -> None:
    """A whole trace of which more is unknown than may be left out."""
    counted = {"prompt tokens": facts.missing_prompt}
    if transform.zero_output == "count_out" or facts.missing_output == 1.0:
        counted["output tokens"] = facts.missing_output
    what, share = max(counted.items(), key=lambda one: one[1])
    if share == 1.0:
        cure = "upload a trace that says how long its requests are"
        detail = f"no request of the trace has {what}, so none can be replayed"
        raise curable("workload.empty", detail, cure, "trace_id", rule="lengths")
    if share > transform.max_excluded_share:
        cure = f"complete the trace, or accept a plan for the rest with max_excluded_share={share + 0.0005:.3f} or more"
        raise curable(
            "workload.incomplete",
            f"{share:.1%} of the requests have no {what} and cannot be replayed: a plan would be for a part of the "
            "load",
            cure,
            "transform.max_excluded_share",
            rule="max_excluded_share",
        )


def check_tenant_names(
    transform: Transform, known: Sequence[str], where: str, label_of: Callable[[str], str] = lambda name: name
) -> None:
    """Refuses tenants that the ``where`` (trace or window) does not have: a misspelt name would change nothing and look
    like an answer. ``known``: its tenants, most requests first; none: it names no tenant.

    Raises:
        TraceError: ``workload.tenants``.
    """
    named = {
        "tenants": transform.tenants,
        "without_tenants": transform.without_tenants,
        "tenant_growth": tuple(transform.tenant_growth),
    }
    for field, name in [(field, name) for field, names in named.items() for name in names]:
        if not known:
            cure = f"map a column to tenant when the trace is ingested, or leave {field} out"
            raise _tenant_refusal(f"no request of the {where} says which tenant it is of", field, cure)
        if label_of(name) not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            listed = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED:,} more" if len(known) > _NAMED else "")
            detail = f"no request of the {where} is of tenant {name!r}"
            raise _tenant_refusal(detail, field, f"{hint}the {where} has {listed}")


def _tenant_refusal(detail: str, field: str, cure: str) -> TraceError:
    return curable("workload.tenants", detail, cure, f"transform.{field}")


def no_blocks_to_share() -> TraceError:
    """The refusal of ``prefix_sharing`` for a trace without block ids."""
    cure = "leave prefix_sharing out, or upload a trace with prefix block ids"
    detail = "the trace has no prefix block ids: nothing is shared that prefix_sharing could scale"
    return curable("workload.prefix_sharing", detail, cure, "transform.prefix_sharing")


def no_session_prefixes(*, has_sessions: bool) -> TraceError:
    """The refusal of ``prefix_from_sessions`` without sessions, or where block ids say it better."""
    if has_sessions:
        detail = "the trace itself says by block ids which prompts begin alike: sessions would only guess at it"
        cure = "leave prefix_from_sessions out: the block ids are used as they are"
    else:
        detail = "prefix_from_sessions needs sessions, and no request of this workload has one"
        cure = "map a column to session when the trace is ingested, or leave prefix_from_sessions out"
    faults = [FieldError(detail, field="transform.prefix_from_sessions", cure=cure)]
    return TraceError("workload.prefix_from_sessions", f"{detail}; {cure}", faults)


def nothing_scored(transform: Transform, span_s: float) -> TraceError:
    """The refusal of a window of ``span_s`` that is all warm-up and cool-down."""
    cure = f"shorten warmup_s and cooldown_s: the window is {span_s:g} s long"
    detail = (
        f"no request is sent between the warm-up of {transform.warmup_s:g} s and the cool-down of "
        f"{transform.cooldown_s:g} s"
    )
    return curable("workload.nothing_scored", detail, cure, "transform.warmup_s")
