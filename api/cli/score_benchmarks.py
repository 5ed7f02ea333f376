"""``capreplay score-benchmarks``: published throughput benchmarks replayed, and how far the figures are off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from api.cli.options import options
from api.cli.output import Progress, json_option, print_json, table


@click.command("score-benchmarks", short_help="Replay a table of throughput benchmarks and print how far it is off.")
@options(
    click.argument("file", type=click.Path(path_type=Path)),
    json_option,
    click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/benchmarks.md."),
    click.option("--rows", type=click.IntRange(min=1), help="Only so many rows, drawn with a fixed seed."),
    click.option("--quiet", "-q", is_flag=True, help="No progress on stderr."),
)
def command(file: Path, as_json: bool, as_markdown: bool, rows: int | None, quiet: bool) -> None:
    """Replay a table of throughput benchmarks and print how far it is off.

    FILE is a CSV table with one operating point a row: closed loops and bursts of quality A and B are replayed, one
    replica each. Rows that are not are counted by reason.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other")

    from replay.accuracy.benchmark_page import benchmark_page
    from replay.accuracy.benchmark_rows import in_scope, read_benchmarks, sample
    from replay.accuracy.benchmarks import benchmarks_document, score_rows
    from replay.hardware.catalogue import shipped_catalogue

    progress = Progress(quiet=quiet)
    chosen = sample([row for row in read_benchmarks(file) if in_scope(row)], rows)
    count = max(len(chosen), 1)
    scored, left_out = score_rows(chosen, shipped_catalogue(), lambda done: progress("replaying rows", done / count))
    progress.done()
    document = benchmarks_document(scored, left_out)
    if as_json:
        print_json(document)
        return
    if as_markdown:
        click.echo(benchmark_page(document), nl=False)
        return
    heads = ("GPU", "model", "engine", "load", "rows", "output tok/s", "signed", "TTFT", "signed", "TPOT", "signed")
    lines = [
        (one["gpu"], one["model"].rsplit("/", 1)[-1], one["engine"], one["load_kind"], *_cells(one))
        for one in document["by"]
    ]
    lines.append(("all", "", "", "", *_cells(document["overall"])))
    click.echo("Median errors, absolute and signed.\n")
    click.echo(table(heads, lines, left=(0, 1, 2, 3)))
    if document["not_replayed"]:
        click.echo("\nNot replayed:\n")
        reasons = [(str(one["rows"]), one["reason"]) for one in document["not_replayed"]]
        click.echo(table(("rows", "why"), reasons, left=(1,), wrap=110))


def _cells(group: dict[str, Any]) -> tuple[str, ...]:
    cells = [str(group["rows"])]
    for name in ("throughput", "ttft", "tpot"):
        found = group.get(name)
        cells += ["-", "-"] if found is None else [f"{100 * found['median']:.1f} %", f"{100 * found['signed']:+.1f} %"]
    return tuple(cells)
