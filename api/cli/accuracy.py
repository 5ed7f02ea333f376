"""``capreplay accuracy``: measured runs replayed, and how far latencies are off."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.options import options
from api.cli.output import Progress, json_option, print_json, table


@click.command("accuracy", short_help="Replay a folder of measured runs and print how far the latencies are off.")
@options(
    click.argument("folder", type=click.Path(path_type=Path)),
    json_option,
    click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/accuracy.md."),
    click.option("--only", metavar="TEXT", default="", help="Only experiments with this in their name."),
    click.option("--quiet", "-q", is_flag=True, help="No progress on stderr."),
)
def command(folder: Path, as_json: bool, as_markdown: bool, only: str, quiet: bool) -> None:
    """Replay a folder of measured runs and print how far the latencies are off.

    FOLDER holds one folder for each experiment, with server.json, summary.json and, where public, requests.csv.gz.
    Every run is replayed with its own arrivals, lengths and settings, and scored by the rules of docs/accuracy.md.
    Runs that cannot be replayed are listed with the reason.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other")

    from replay.accuracy import wording
    from replay.accuracy.page import page
    from replay.accuracy.verb import accuracy_document, score_folder
    from replay.hardware.catalogue import shipped_catalogue

    progress = Progress(quiet=quiet)
    scored, left_out = score_folder(
        folder, shipped_catalogue(), only=only, told=lambda name: progress("replaying " + name)
    )
    progress.done()
    document = accuracy_document(scored, left_out)
    if as_json:
        print_json(document)
        return
    if as_markdown:
        click.echo(page(document), nl=False)
        return
    click.echo(table(*wording.medians_table(document), left=(0, 1, 2, 3, 6)))
    click.echo("\nThe ten runs furthest off:\n")
    click.echo(table(*wording.worst_table(document), left=(0, 1)))
    click.echo("\nSigned errors in %; in brackets where the rules do not let them count:\n")
    click.echo(table(*wording.experiments_table(document), left=(0, 1, 2, 5)))
    if document["largest_rates"]:
        click.echo("\nThe largest rate that meets a limit:\n")
        click.echo(table(*wording.largest_rates_table(document), left=(0, 1, 3)))
        click.echo("\n" + wording.largest_rates_sentence(document))
    click.echo("\n" + wording.verdict_sentence(document))
    if sentence := wording.throughput_sentence(document):
        click.echo(sentence)
    if left_out:
        click.echo("\nNot replayed:\n")
        click.echo(table(*wording.left_out_table(document), left=(0, 1), wrap=100))
