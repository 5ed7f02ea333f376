"""``capreplay ingest``: what a trace file holds, and what was rejected and assumed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.options import format_options, id_key_of, ingest_options_of, options
from api.cli.output import Progress, json_option, print_json, table
from api.reports.formats import duration, number, percent

if TYPE_CHECKING:
    from replay.traces.report import IngestReport, LengthProfile


@click.command("ingest", short_help="Read and clean a trace file; print what was kept, rejected and assumed.")
@options(
    click.argument("file", type=click.Path(path_type=Path)),
    format_options,
    click.option("--out", type=click.Path(path_type=Path), help="Keep the canonical trace as this Parquet file."),
    json_option,
)
def command(file: Path, out: Path | None, as_json: bool, **how: Any) -> None:
    """Read and clean a trace file; print what was kept, rejected and assumed.

    FILE may be plain, gzip, zstd or a zip of one file. Its format is recognised from its content; --format and
    --map say it outright.
    """
    from replay.traces.ingest import ingest
    from replay.traces.report import ingest_answer

    chosen = ingest_options_of(**how)
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
        target = out or Path(folder) / "trace.parquet"
        report = ingest(
            file,
            target,
            chosen,
            lambda done, total: progress(f"reading {file.name}", done / max(total, 1)),
            id_key=id_key_of(chosen),
        )
    progress.done()
    if as_json:
        print_json(ingest_answer(report))
    else:
        click.echo(_text(report))


def _text(report: IngestReport) -> str:
    cleaning, profile = report.cleaning, report.profile
    lines = [
        f"{report.title}: {report.requests:,} requests over {duration(report.span_s)}, "
        f"{report.prompt_tokens:,} prompt and {report.output_tokens:,} output tokens.",
        f"Recognised as {report.format}: {report.why}",
        f"{cleaning.rows_read:,} rows read = {cleaning.rows_kept:,} kept + {cleaning.rows_rejected:,} rejected.",
        *(f"Assumed {name.replace('_', ' ')}: {value}" for name, value in report.assumed.items()),
    ]
    if cleaning.rejections:
        rows = [(str(one.line), one.column or "-", one.value or "-", one.rule, one.cure) for one in cleaning.rejections]
        lines += ["", table(("line", "column", "value", "rule", "cure"), rows, left=(1, 2, 3, 4))]
        if cleaning.rows_rejected > len(rows):
            lines.append(f"... and {cleaning.rows_rejected - len(rows):,} more")
    rates = (
        ("mean requests/s", number(profile.mean_rps)),
        ("peak requests/s over 1 s", number(profile.peak_rps_1s)),
        ("peak requests/s over 1 min", number(profile.peak_rps_1min)),
        ("peak requests/s over 1 h", number(profile.peak_rps_1h)),
        ("burstiness (variance / mean per second; 1 = Poisson)", number(profile.dispersion_1s)),
        ("requests without an output length", percent(cleaning.share_missing_output_tokens)),
    )
    lines += ["", table(("load", ""), rates)]
    head = ("tokens per request", "requests", "mean", "p50", "p90", "p99", "max")
    lengths = (_length("prompt", profile.prompt_tokens), _length("output", profile.output_tokens))
    lines += ["", table(head, lengths)]
    lines += ["", *(f"Warning: {one}" for one in report.warnings)] if report.warnings else []
    return "\n".join(lines)


def _length(name: str, one: LengthProfile) -> tuple[str, ...]:
    figures = (one.n, one.mean, one.p50, one.p90, one.p99, one.max)
    return (name, *(number(figure) for figure in figures))
