"""An uploaded file to a canonical table and a report of what was found, assumed, repaired and refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from replay.errors import FieldError, TraceError
from replay.traces import canonical
from replay.traces.aggregates import check_columns, check_plausible, check_rows_are_requests, remark_sampled
from replay.traces.canonical import Meta
from replay.traces.cleaning import Ledger
from replay.traces.delimited import open_delimited
from replay.traces.envelope import Wrapped, unwrapped
from replay.traces.formats import all_formats
from replay.traces.formats.base import Format
from replay.traces.formats.generic import unknown_columns
from replay.traces.gaps import Around, classify, mean_without, remark
from replay.traces.jsoncells import json_cells
from replay.traces.jsontext import open_json
from replay.traces.kept import kept_in, settled
from replay.traces.lines import batches as line_batches
from replay.traces.logtext import TEXT, open_log
from replay.traces.mixing import write_own
from replay.traces.options import IngestOptions
from replay.traces.parquet import open_parquet
from replay.traces.passes import Pass, read_whole
from replay.traces.profile import Measured, measure
from replay.traces.pseudonyms import Pseudonyms, key_needed, shown
from replay.traces.report import CleaningReport, IngestReport
from replay.traces.rows import Sample, Table
from replay.traces.source import Source, no_progress
from replay.traces.spool import Spool
from replay.traces.synthetic import Description, description_in, draw
from replay.traces.times import EPOCH_2000_NS
from replay.traces.unwrap import Unwrapped, UnwrappedText, check_order, no_known_lines, prefixed, unwrap
from replay.traces.wrappers import wrapper_of

NS = 10**9
_OPEN_ENDED = ("azure-llm-2023", "azure-llm-2024", "azure-lmm-2025")
"""Published without a line break at the end."""
_READ, _WRITTEN = 0.4, 0.7
"""Shares of the work done when all is read, and when all is written: of 40 M rows of CSV (bench/big_trace.py)."""
_LOG_BRACKET = re.compile(rb"\[\s*(?:[A-Za-z]|\d{4}-\d\d-\d\d)")


def ingest(
    source: Path,
    out: Path,
    options: IngestOptions | None = None,
    progress: Callable[[int, int], None] = no_progress,
    *,
    id_key: bytes | None = None,
) -> IngestReport:
    """Reads the trace file ``source`` and writes the canonical Parquet file ``out`` (only if all went well).

    ``progress(done_bytes, total_bytes)`` is called about once a batch and may raise to cancel. Reading is the first
    part of the work, by bytes read; writing and profiling the rest, by rows.
    ``id_key`` is the installation's key, for ``options.ids == "hash"``.

    Raises:
        SpecError: ids are to be replaced, and there is no key.
        TraceError: whatever cannot be read honestly; names line, column, rule and cure.
    """
    options = options or IngestOptions()
    if options.ids == "hash" and not id_key:
        raise key_needed()
    description = description_in(source)
    if description is not None:
        return _drawn(description, out, options, progress)
    opened = Source(source, options.limits, lambda done, total: progress(int(_READ * done), total))
    table = open_table(opened, options)
    chosen, why = choose(table.sample, options)
    kept = kept_in(source) if opened.is_parquet else None
    notes = kept.notes if kept is not None else ""
    if kept is not None:
        options = settled(options, kept)
    check_columns(table.sample, options)

    pseudonyms = Pseudonyms(id_key, labels_stay=kept is not None) if options.ids == "hash" and id_key else None

    def stage(begin: float, end: float, rows: int) -> Callable[[int], None]:
        """Progress of a stage after the reading, which is told its rows done."""
        return lambda done: progress(int(opened.size * (begin + (end - begin) * done / max(rows, 1))), opened.size)

    staged = out.with_name(out.name + ".part")
    try:
        with TemporaryDirectory(prefix=".ingest-", dir=out.parent) as folder:
            found = read_whole(Pass(chosen, table, options, pseudonyms, Path(folder)))
            ledger, spool = found.ledger, found.spool
            ledger.assumed["container"] = table.sample.container
            remark_sampled(table.sample, ledger)
            if opened.compression != "none":
                ledger.assumed["compression"] = opened.compression
            if pseudonyms is not None and pseudonyms.found:
                ledger.assumed["ids"] = f"{' and '.join(sorted(pseudonyms.found))} ids replaced by labels"
            if opened.open_ended and table.sample.container in ("csv", "tsv") and chosen.name not in _OPEN_ENDED:
                ledger.warn(
                    "open_ended",
                    "the file does not end with a line break: if it was cut off, its last number has lost digits",
                )
            if opened.open_ended and table.sample.container == "jsonl" and ledger.by_rule["malformed_json"]:
                ledger.warn(
                    "open_ended",
                    "the file ends in the middle of a line: it seems to have been cut off, so requests may be missing",
                )
            more = table.more_pages() if isinstance(table, Wrapped) else None
            if isinstance(table, Unwrapped | UnwrappedText):
                more = table.missing.said()
                ledger.assumed["envelope"] = f"{table.wrapper.name}: the messages inside were read"
            if isinstance(table, Unwrapped) and table.others[0]:
                ledger.not_requests["log lines that are no JSON"] += table.others[0]
            if more is not None:
                ledger.warn(
                    "more_pages",
                    f"the file is not the last page of its list ({more}): if pages are missing, so is load",
                )
            meta = replace(_meta(spool, ledger, chosen, options), notes=notes)
            if notes:
                ledger.warn("carried", notes)
            spool.write(staged, meta, stage(_READ, _WRITTEN, spool.rows))
            span_ns = (spool.last_ns or 0) - (spool.first_ns or 0)
            measured = measure(staged, meta, span_ns, stage(_WRITTEN, 1.0, spool.rows))
            progress(opened.size, opened.size)
            moved = spool.moved
        _check_lengths(measured, ledger)
        check_rows_are_requests(table.sample, measured, options)
        check_plausible(ledger, measured, moved, options)
        found.subtotals.check(options)
        found.counters.check(options)
        found.clock.check(options)
        report = _report(chosen, why, ledger, measured, moved, span_ns, meta)
        staged.replace(out)
    finally:
        staged.unlink(missing_ok=True)
    return report


def _drawn(
    description: Description, out: Path, options: IngestOptions, progress: Callable[[int, int], None]
) -> IngestReport:
    """Ingests the requests drawn from a description as if they had been uploaded, and says that they were drawn."""
    frame, note = draw(description)
    with TemporaryDirectory(prefix=".drawn-", dir=out.parent) as folder:
        target = Path(folder) / "drawn.parquet"
        write_own(frame, target, Meta(notes=note))
        report = ingest(target, out, options, progress)
    why = "the file describes clients (span_s, clients); its requests were drawn from that"
    return report.model_copy(update={"title": "Drawn from a description", "why": why})


def open_table(source: Source, options: IngestOptions | None = None) -> Table:
    """The container of the content: Parquet, JSON lines, an array or objects, a log that a format knows, or delimited
    text. A JSON document that wraps its rows (``{"data": [...]}``) is opened as its rows, and what a log system has put
    its envelopes around as the lines inside, unless the mapping of ``options`` names columns of the envelope."""
    if source.is_parquet:
        return open_parquet(source)
    first = next(line_batches(source), None)
    if first is not None and _begins_like_json(first.data):
        return _out_of_envelopes(unwrapped(open_json(source)), options or IngestOptions())
    if first is not None and first.data.strip():
        log = open_log(source)
        if _is_known_log(log.sample):
            return log
        if _is_cut_json(log.sample):
            return unwrapped(open_json(source))
        if (inner := prefixed(log)) is not None:
            return inner
    return _out_of_envelopes(open_delimited(source), options or IngestOptions())


def _out_of_envelopes(table: Table, options: IngestOptions) -> Table:
    """The lines inside, where no format knows the records themselves and they are envelopes of a log system."""
    wrapper = wrapper_of(table.sample)
    if wrapper is None or _is_known_log(table.sample):
        return table
    mapped = set(options.mapping.values())
    if mapped and mapped <= set(json_cells(table, mapped).sample.columns):
        return table
    inner = unwrap(table, wrapper)
    if isinstance(inner, UnwrappedText):
        if not _is_known_log(inner.sample):
            raise no_known_lines(inner, shown(inner.sample.rows[0][TEXT], hidden=options.ids == "hash"))
        check_order(inner)
    return inner


def _begins_like_json(data: bytes) -> bool:
    """An object, or an array of objects: a log line may begin with a bracket, too."""
    start = data.lstrip()
    return start[:1] == b"{" or (start[:1] == b"[" and _LOG_BRACKET.match(start) is None)


def _is_known_log(sample: Sample) -> bool:
    return bool(sample.rows) and any(form.detect(sample) is not None for form in all_formats())


def _is_cut_json(sample: Sample) -> bool:
    """Whether a rotated log of JSON lines begins in the middle of one: all lines but the first few are objects."""
    objects = sum(row["line"].lstrip().startswith("{") for row in sample.rows)
    return bool(objects >= 2 and objects > 0.8 * len(sample.rows))


def choose(sample: Sample, options: IngestOptions) -> tuple[Format, str]:
    """The format to read with, and why: the user's word, a mapping, or the content.

    Raises:
        TraceError: no format fits, or two fit equally well.
    """
    formats = {form.name: form for form in all_formats()}
    if options.format is not None:
        form = formats.get(options.format)
        if form is None:
            cure = f"one of {', '.join(sorted(formats))}; or none, to have it detected"
            raise TraceError(
                "trace.unknown_format",
                f"there is no format {options.format!r}: {cure}",
                [FieldError(cure, field="format", rule="unknown_format", cure=cure)],
            )
        if options.mapping and form.name != "generic":
            cure = "give a format or a mapping, not both"
            raise TraceError(
                "trace.mapping",
                f"{form.name} fixes its own columns; a mapping was given too",
                [FieldError(cure, field="mapping", rule="mapping", cure=cure)],
            )
        if form.name != "generic" and form.detect(sample) is None:
            cure = f"needed: {', '.join(form.needs)}; give no format to have it detected"
            raise TraceError(
                "trace.wrong_format",
                f"the file is not {form.name}. Found ({sample.container}): {', '.join(sample.columns[:40])}. {cure}",
                [FieldError(cure, field="format", rule="wrong_format", cure=cure)],
            )
        return form, "as asked (format)"
    if options.mapping:
        return formats["generic"], "a column mapping was given"
    found = [(match, form) for form in formats.values() if (match := form.detect(sample)) is not None]
    if not found:
        raise unknown_columns(sample)
    best = max(match.strength for match, _ in found)
    top = [(match, form) for match, form in found if match.strength == best]
    if len(top) > 1:
        names = [form.name for _, form in top]
        cure = f"give the parameter format: one of {', '.join(names)}"
        raise TraceError(
            "trace.ambiguous_format",
            f"the content fits {len(names)} formats: {', '.join(names)}",
            [FieldError(cure, field="format", rule="ambiguous_format", cure=cure)],
        )
    return top[0][1], top[0][0].why


def _meta(spool: Spool, ledger: Ledger, chosen: Format, options: IngestOptions) -> Meta:
    first = spool.first_ns
    if first is None:
        cure = "at least one request must say when it arrived"
        raise TraceError(
            "trace.no_arrivals", cure, [FieldError(cure, field="arrival", rule="missing_arrival", cure=cure)]
        )
    absolute = first >= EPOCH_2000_NS
    if ledger.time_zone is None and absolute:
        ledger.time_zone = "UTC"
    return Meta(
        block_size_tokens=(ledger.block_size or chosen.block_size(options)) if spool.has_blocks else None,
        start_epoch_ns=first if absolute else None,
        zone=(options.time_zone or ledger.time_zone or "UTC") if absolute else None,
    )


def _check_lengths(measured: Measured, ledger: Ledger) -> None:
    """A trace without lengths cannot be replayed; 20,000 requests of 0 tokens must never look like a light load.

    A server's log that cannot hold them is kept for its arrivals; a workload made of it is refused.
    """
    if ledger.arrivals_only is not None:
        if measured.requests in (measured.missing_prompt, measured.missing_output):
            ledger.warn("arrivals_only", f"arrivals only, it cannot be replayed: {ledger.arrivals_only}")
        return
    for name, missing in (("prompt_tokens", measured.missing_prompt), ("output_tokens", measured.missing_output)):
        if missing == measured.requests:
            cure = f"map {name} to a column that holds token counts"
            raise TraceError(
                "trace.no_lengths",
                f"none of the {measured.requests:,} requests has {name}: all are empty or 0",
                [FieldError(cure, field=name, rule="no_lengths", cure=cure)],
            )


def _report(
    chosen: Format, why: str, ledger: Ledger, measured: Measured, moved: int, span_ns: int, meta: Meta
) -> IngestReport:
    profile, arrivals = measured.profile, measured.arrivals
    around = Around(arrivals.bins["1s"], arrivals.bins["1min"], arrivals.n, span_ns)
    gaps = classify(arrivals.top_gaps, around, meta)
    said = remark(gaps, around)
    _clock_warnings(ledger, measured, moved, said)
    step = arrivals.smallest_step
    cleaning = CleaningReport(
        rows_read=ledger.rows_read,
        rows_kept=ledger.rows_read - ledger.rows_rejected,
        rows_rejected=ledger.rows_rejected,
        rejected_by_rule=dict(sorted(ledger.by_rule.items())),
        rejections=ledger.first,
        blank_lines=ledger.blank,
        not_requests=dict(sorted(ledger.not_requests.items())),
        time_unit=ledger.time_unit,
        time_zone=ledger.time_zone,
        rows_moved_by_sorting=moved,
        largest_gap_s=arrivals.largest_gap / NS,
        largest_gap_after_s=arrivals.largest_gap_at / NS,
        gaps=gaps,
        mean_rps_without_outages=mean_without(gaps, around),
        share_missing_prompt_tokens=measured.missing_prompt / measured.requests,
        share_missing_output_tokens=measured.missing_output / measured.requests,
        zero_prompt_tokens=ledger.zero_prompt,
        zero_output_tokens=ledger.zero_output,
        clock_resolution_s=None if step is None else step / NS,
        tied_requests=arrivals.ties,
        closed_loop_requests=measured.closed_loop,
        retries_by_id=ledger.retried,
        retries_after_failure=measured.retries.requests,
        cancel_times=measured.cancel_times,
        status_counts=measured.statuses,
        warnings=list(ledger.warnings.values()),
    )
    return IngestReport(
        format=chosen.name,
        title=chosen.title,
        why=why,
        assumed=ledger.assumed,
        requests=measured.requests,
        prompt_tokens=profile.prompt_tokens.total,
        output_tokens=profile.output_tokens.total,
        span_s=profile.span_s,
        cleaning=cleaning,
        profile=profile,
        canonical_version=canonical.VERSION,
        warnings=list(ledger.warnings.values()),
    )


def _clock_warnings(ledger: Ledger, measured: Measured, moved: int, gap: str | None) -> None:
    arrivals, n = measured.arrivals, measured.requests
    step = arrivals.smallest_step
    if step is None and n > 1:
        ledger.warn("one_instant", "all requests arrive at the same instant: there is no rate to replay")
    if step is not None and step >= NS and arrivals.ties:
        ledger.warn(
            "clock",
            f"the clock moves in steps of {step / NS:g} s and {arrivals.ties / n:.0%} of the requests share their time "
            "with the one before: peaks over shorter windows than a step are artefacts of the clock; the transform's "
            "spread lays them over the step",
        )
    if moved:
        ledger.warn("sorted", f"{moved:,} rows came after a row with a later arrival; the table is sorted by arrival")
    if gap is not None:
        ledger.warn("gap", gap)
    if ledger.zero_output or ledger.zero_prompt:
        ledger.warn(
            "zeros",
            f"{ledger.zero_prompt:,} rows say 0 prompt tokens and {ledger.zero_output:,} say 0 output tokens: they "
            "stay as arrivals with the length unknown; the transform's zero_output says what becomes of outputs",
        )
    missing = max(measured.missing_prompt, measured.missing_output) / n
    if missing > 0.05:
        ledger.warn(
            "missing",
            f"{missing:.1%} of the requests lack a length: a replay leaves them out and so understates the load",
        )
    if measured.closed_loop:
        lost = (
            f"; rates here leave out the {measured.timeless:,} without a time of their own" if measured.timeless else ""
        )
        ledger.warn(
            "closed_loop",
            f"{measured.closed_loop:,} requests start only when another has ended (closed loop): a replay sends them "
            f"then, whatever the old system's times were{lost}",
        )
    if ledger.retried:
        ledger.warn(
            "retried",
            f"{ledger.retried:,} requests have the id of an earlier one at another time: retries, each a real request",
        )
    if measured.retries.requests:
        share = measured.retries.prompt_tokens / max(measured.profile.prompt_tokens.total, 1)
        ledger.warn(
            "retries",
            f"{measured.retries.requests:,} requests are likely retries: their session had sent a prompt of the same "
            f"length within ten minutes, and it had failed. Each was real load ({share:.1%} of the prompt tokens); a "
            "fleet on which no call fails would not see them",
        )
    if ledger.not_requests:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in ledger.not_requests.most_common(10))
        ledger.assumed["not_requests"] = f"{kinds}: no requests, so neither kept nor rejected"
