"""``capreplay beat``: the clock of a deployment; this process becomes it."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.options import options
from api.cli.service import data_dir_option
from api.cli.worker import become


@click.command("beat", short_help="Start the clock that triggers schedules, dispatch and repair.")
@options(click.option("--check", is_flag=True, help="Only say whether the clock runs; exit 1 if not."), data_dir_option)
def command(check: bool, data_dir: Path | None) -> None:
    """Start the clock that triggers schedules, dispatch and repair.

    For deployments with Redis; several are harmless. Embedded mode needs none.
    """
    become("beat", ["--check"] if check else [], data_dir=data_dir)
