"""``capreplay migrate``: the database's schema."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.options import options
from api.cli.output import json_option, print_json
from api.cli.service import data_dir_option, settings_with


@click.command("migrate", short_help="Bring the database to this version's schema.")
@options(
    click.option("--downgrade", metavar="REVISION", help="Go back to this revision instead (base: an empty database)."),
    data_dir_option,
    json_option,
)
def command(downgrade: str | None, data_dir: Path | None, as_json: bool) -> None:
    """Bring the database to this version's schema.

    Reads CAPREPLAY_DATABASE_URL; without it, SQLite in the data folder. Safe to repeat.
    """
    from models import migrate

    settings = settings_with(data_dir=data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    before = migrate.current_revision(settings)
    if downgrade:
        migrate.downgrade(settings, downgrade)
    else:
        migrate.upgrade_to_head(settings)
    after = migrate.current_revision(settings)
    if as_json:
        print_json({"before": before, "after": after})
    else:
        click.echo(
            f"schema {after or 'empty'}"
            + (" (was there already)" if before == after else f" (was {before or 'empty'})")
        )
