"""What a transform asks of a trace, checked against what the trace's report says of it: refused before a job is made.

No polars here: ``api`` checks requests with this module. A job checks the same by the rows themselves, with the same
sentences where it can; what only the rows tell is refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import compress

import numpy as np

from replay.errors import FieldError, TraceError, curable
from replay.specs_transform import MixAlign, MixedTrace, Transform
from replay.traces.extent import MAX_REQUESTS, check_requests
from replay.traces.labels import NO_LABEL
from replay.traces.report import IngestReport
from replay.traces.windows import Window, find_window

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
    tenants: Mapping[str, float] | None
    """Requests of all tenants, most first, ``NO_LABEL`` for requests without one if any has one; ``None``: too
    many."""
    requests: float
    """In a mix, as many as are drawn on average."""
    bins: tuple[float, tuple[int, ...]]
    """Seconds of a bin of the trace's time, and the requests in each; none of a mix."""
    cache_hits: float
    """Requests that a gateway's cache answered."""
    missing_prompt: float
    missing_output: float
    """Shares of requests."""
    step_s: float
    """Smallest step of the clock."""
    cancel_times: bool = True
    """Whether any request may say when its client left."""


def facts_of(report: IngestReport) -> Facts:
    """The facts of one trace."""
    profile, cleaning = report.profile, report.cleaning
    tenants: dict[str, float] | None = {one.tenant: one.requests for one in profile.top_tenants}
    if profile.tenants > len(profile.top_tenants):
        tenants = None
    elif tenants and (rest := profile.requests - sum(tenants.values())) > 0:
        tenants[NO_LABEL] = rest
    start = None if profile.start_utc is None else datetime.fromisoformat(profile.start_utc)
    return Facts(
        last_ns=round(profile.span_s * NS),
        start_epoch_ns=None if start is None else (start - _EPOCH) // timedelta(microseconds=1) * 1000,
        zone=profile.heat_map_zone,
        closed_loop=cleaning.closed_loop_requests > 0,
        block_size=profile.prefix.block_size_tokens if profile.prefix is not None else None,
        sessions=profile.sessions > 0,
        tenants=tenants,
        requests=profile.requests,
        bins=(profile.series.bin_s, tuple(one.requests for one in profile.series.bins)),
        cache_hits=cleaning.status_counts.get("cache_hit", 0),
        missing_prompt=cleaning.share_missing_prompt_tokens,
        missing_output=cleaning.share_missing_output_tokens,
        step_s=cleaning.clock_resolution_s or 0.0,
        cancel_times=cleaning.cancel_times != 0,
    )


def mixed_facts(base: Facts, others: Sequence[tuple[MixedTrace, Facts]], align: MixAlign) -> Facts:
    """The facts of a trace with others (under their names) mixed in, as ``replay.traces.mixing`` mixes them.

    Raises:
        TraceError: ``trace.mix``: they cannot be mixed.
    """
    if not others:
        return base
    parts = [base, *(facts for _, facts in others)]
    check_mix([("the trace", base), *((one.name, facts) for one, facts in others)], align, slack_ns=_MS)
    starts = [facts.start_epoch_ns or 0 if align == "clock" else 0 for facts in parts]
    known = [(base, "", 1.0), *((facts, one.name, one.share) for one, facts in others)]
    tenants: dict[str, float] | None = {}
    for facts, name, share in known:
        if tenants is None or facts.tenants is None:
            tenants = None
            break
        for tenant, requests in (facts.tenants or {NO_LABEL: facts.requests}).items():
            label = tenant if not name else name if tenant == NO_LABEL else f"{name}/{tenant}"
            tenants[label] = requests * share
    return Facts(
        last_ns=max(start + one.last_ns for start, one in zip(starts, parts, strict=True)) - min(starts),
        start_epoch_ns=min(starts) if align == "clock" else base.start_epoch_ns,
        zone=base.zone,
        closed_loop=False,
        block_size=next((one.block_size for one in parts if one.block_size), None),
        sessions=any(one.sessions for one in parts),
        tenants=tenants,
        requests=sum(facts.requests * share for facts, _, share in known),
        bins=(1.0, ()),
        cache_hits=sum(facts.cache_hits * share for facts, _, share in known),
        missing_prompt=min(one.missing_prompt for one in parts),
        missing_output=min(one.missing_output for one in parts),
        step_s=max(one.step_s for one in parts),
        cancel_times=any(one.cancel_times for one in parts),
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


def check_transform(
    transform: Transform,
    facts: Facts,
    label_of: Callable[[str], str] = lambda name: name,
    max_requests: int = MAX_REQUESTS,
) -> None:
    """Refuses what can be seen to fail. ``label_of`` gives the label that the trace has for a tenant that is named;
    ``max_requests`` is the most that one replay takes.

    Raises:
        TraceError: ``workload.window``, ``.too_long``, ``.tenants``, ``.prefix_sharing``, ``.prefix_from_sessions``,
            ``.cancels``, ``.empty``, ``.incomplete``, ``.nothing_scored`` or ``.too_many_requests``.
    """
    windows = (transform.window_from, transform.window_until, transform.window_start_s, transform.busiest_window_s)
    # A report has times as floats of seconds and its start to the millisecond: what is that near is left to the job.
    slack_ns = 0 if all(one is None for one in windows) else _MS if facts.start_epoch_ns is not None else 2
    window = find_window(np.array([0, facts.last_ns + slack_ns]), transform, facts)
    if facts.tenants is not None:
        check_tenant_names(transform, tuple(facts.tenants), "trace", label_of)
    if transform.prefix_sharing < 1.0 and facts.block_size is None:
        raise no_blocks_to_share()
    if transform.prefix_from_sessions and (facts.block_size is not None or not facts.sessions):
        raise no_session_prefixes(has_sessions=facts.sessions)
    if transform.cancels != "as_logged" and not facts.cancel_times:
        raise no_cancel_times()
    chosen = window.chosen or transform.tenants or transform.without_tenants or transform.mix_with
    if not chosen and not facts.cache_hits:
        _check_lengths(transform, facts)
    if not facts.closed_loop and transform.agent_steps == 1:
        span_s = window.span_s + (facts.step_s if transform.spread != "keep" else 0.0)
        span_s /= transform.growth if transform.growth_method == "compress" else 1.0
        if transform.warmup_s + transform.cooldown_s > span_s + slack_ns / NS:
            raise nothing_scored(transform, span_s)
    check_requests(_least_requests(transform, facts, window, label_of), transform, max_requests)


def _least_requests(transform: Transform, facts: Facts, window: Window, label_of: Callable[[str], str]) -> float:
    """How many requests the workload has at least, give or take what is drawn; 0 where only the rows tell."""
    missing = facts.missing_prompt
    missing += facts.missing_output if transform.zero_output in ("count_out", "drop") else 0.0
    share = max(1 - missing - facts.cache_hits / max(facts.requests, 1), 0.0)
    compressed = transform.growth_method == "compress"
    factor = transform.agent_steps * (1.0 if compressed else transform.growth)
    named = {label_of(name): times for name, times in transform.tenant_growth.items()}
    if transform.tenants or transform.without_tenants or named:
        if window.chosen or facts.tenants is None:
            return 0.0
        wanted = set(map(label_of, transform.tenants or facts.tenants))
        wanted -= set(map(label_of, transform.without_tenants))
        grown = sum(count * named.get(one, 1.0) for one, count in facts.tenants.items() if one in wanted)
        return grown * share * factor
    return _in_window(transform, facts, window) * share * factor


def _in_window(transform: Transform, facts: Facts, window: Window) -> float:
    """Requests in the window, at least."""
    if not window.chosen:
        return facts.requests
    if facts.closed_loop:  # whole sessions are in or out, by their first requests
        return 0.0
    if transform.busiest_window_s is not None:  # its place is not known, but it has the mean load or more
        mean = facts.requests * NS * window.span_s / (facts.last_ns + 1)
        return mean if transform.window_load_quantile == 1.0 else 0.0
    bin_ns, counts = facts.bins[0] * NS, facts.bins[1]
    inside = (
        number * bin_ns >= window.start_ns and (number + 1) * bin_ns <= window.end_ns for number in range(len(counts))
    )
    return float(sum(compress(counts, inside)))


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


def no_cancel_times() -> TraceError:
    """The refusal of ``cancels`` for a trace that does not say when clients left."""
    cure = "leave cancels out (as_logged), or map a column to cancel_after and upload the trace again"
    what = "no request of the trace says when its client left"
    return curable("workload.cancels", what, cure, "transform.cancels")


def nothing_to_draw_from() -> TraceError:
    """The refusal of drawn lengths where every request was cut."""
    cure = "set cancels=at_their_time, or choose a window with requests that finished"
    what = "no request of the window finished whose length an aborted answer could have had"
    return curable("workload.cancels", what, cure, "transform.cancels")


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
