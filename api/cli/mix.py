"""``capreplay mix``: several traces as one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import click

from api.cli.options import options
from api.cli.output import json_option, print_json


@click.command("mix", short_help="Put the load of several traces together, as one trace.")
@options(
    click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path)),
    click.option(
        "--out", type=click.Path(path_type=Path), required=True, help="Write the mixed trace here, as Parquet."
    ),
    click.option(
        "--align",
        type=click.Choice(["start", "clock"]),
        default="start",
        show_default=True,
        help="Let all begin together, or keep the times of their clocks.",
    ),
    json_option,
)
def command(traces: tuple[Path, ...], out: Path, align: Literal["start", "clock"], as_json: bool) -> None:
    """Put the load of several traces together, as one trace.

    TRACES are two files or more: services that will share a cluster, or a region whose load another takes over when it
    fails. Each file's name becomes the tenant of its requests, so that run and replay can scale or leave out each.
    """
    from replay.traces.ingest import ingest
    from replay.traces.mixing import Part, mix

    if len(traces) < 2:
        raise click.UsageError("mix takes two traces or more, e.g. capreplay mix east.csv west.csv --out both.parquet")
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"--out {out}: the folder {out.parent} does not exist")
    with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
        parts = []
        for number, trace in enumerate(traces):
            target = Path(folder) / f"{number}.parquet"
            ingest(trace, target)
            parts.append(Part(target, trace.name.split(".")[0]))
        note = mix(parts, align, out)
    if as_json:
        print_json({"out": str(out), "note": note})
    else:
        click.echo(f"{note}\nWritten to {out}.")
