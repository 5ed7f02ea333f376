"""``capreplay verify``: the engine loop against recorded steps of the real scheduler."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.options import options
from api.cli.output import json_option, print_json, table


@click.command("verify", short_help="Replay recorded scheduler cases and compare step by step.")
@options(click.argument("file", type=click.Path(path_type=Path)), json_option)
@click.pass_context
def command(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Replay recorded scheduler cases and compare step by step.

    FILE holds cases by mode, as recorded from the real scheduler. Exit code 1 if any integer of any case differs.
    """
    from replay.verify import verify

    answer = verify(file)
    modes = answer["modes"]
    passed = sum(mode["passed"] for mode in modes.values())
    total = sum(mode["total"] for mode in modes.values())
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{passed} of {total} recorded cases match exactly.\n")
        rows = [(name, f"{m['passed']} of {m['total']}", str(m["first_difference"] or "")) for name, m in modes.items()]
        click.echo(table(("mode", "passed", "first difference"), rows, left=(0, 2)))
    if passed != total:
        ctx.exit(1)
