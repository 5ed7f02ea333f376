"""``capreplay synth``: a trace drawn from a description, where there is no log yet."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from api.cli.options import load_json, options
from api.cli.output import json_option, print_json


@click.command("synth", short_help="Draw a trace from a description of clients, where there is no log yet.")
@options(
    click.argument("description", type=click.Path(path_type=Path)),
    click.option("--out", type=click.Path(path_type=Path), help="Write the trace here, as Parquet."),
    click.option("--describe", is_flag=True, help="DESCRIPTION is a trace: print a description like it."),
    json_option,
)
def command(description: Path, out: Path | None, describe: bool, as_json: bool) -> None:
    """Draw a trace from a description of clients, where there is no log yet.

    DESCRIPTION is a JSON file: span_s, seed and clients, each with name, rate_rps, gap_cv, gaps, prompt_tokens and
    output_tokens (see docs/traces.md). The trace is Parquet and is read like any other; every report made of it
    says that it was drawn and not recorded.
    """
    from replay.traces.canonical import Meta
    from replay.traces.mixing import write_own
    from replay.traces.synthetic import describe as description_like
    from replay.traces.synthetic import draw, read_description

    if describe:
        from replay.traces.ingest import ingest

        with tempfile.TemporaryDirectory(prefix="capreplay-") as folder:
            report = ingest(description, Path(folder) / "trace.parquet")
        click.echo(json.dumps(description_like(report.profile).model_dump(mode="json"), indent=1))
        return
    if out is None:
        raise click.UsageError("synth needs --out FILE, where the trace is written")
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"--out {out}: the folder {out.parent} does not exist")
    frame, note = draw(read_description(load_json(description, "DESCRIPTION")))
    write_own(frame, out, Meta(notes=note))
    if as_json:
        print_json({"out": str(out), "requests": frame.height, "note": note})
    else:
        click.echo(f"{note}\nWritten to {out}.")
