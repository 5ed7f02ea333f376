"""``capreplay score-steps``: the shipped step-time calibrations against a table of timed steps."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.options import options
from api.cli.output import json_option, print_json, table


@click.command("score-steps", short_help="Compare the shipped step times with a table of timed steps.")
@options(click.argument("file", type=click.Path(path_type=Path)), json_option)
def command(file: Path, as_json: bool) -> None:
    """Compare the shipped step times with a table of timed steps.

    FILE is a Parquet table with the columns of aiconfigurator's step times, one row a step. Rows that rest on measured
    kernels (source silicon) are scored; errors are |predicted / given - 1|.
    """
    from replay.steptime.score import score_steps

    scores = score_steps(file)
    if as_json:
        print_json(scores.document())
        return
    overall = scores.overall
    click.echo(f"{overall['n']} steps: median error {overall['median']:.1%}, p95 {overall['p95']:.1%}.\n")
    rows = [
        (str(row["calibration_id"]), str(row["phase"]), f"{row['median']:.1%}", f"{row['p95']:.1%}", str(row["n"]))
        for row in scores.by_calibration
    ]
    click.echo(table(("calibration", "phase", "median", "p95", "steps"), rows, left=(0, 1)))
    for reason, count in scores.rows.items():
        click.echo(f"rows {reason}: {count}")
    for found in scores.analytic:
        name = f"{found['model']} on {found['gpu']} at tp {found['tp']} ({found['backend']})"
        click.echo(f"{name}: {found['n']} steps from the data sheet, since {found['reason']}")
