"""Runs the migrations from code: ``capreplay migrate``, the embedded start, and tests."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from models.database import make_engine
from models.settings import Settings, load_settings
from replay.errors import FieldError, SpecError


def alembic_config(settings: Settings) -> Config:
    """Alembic's configuration for the installed package ``migrations``; no ini file."""
    found = find_spec("migrations")
    if found is None or found.origin is None:
        raise RuntimeError("the package migrations is not installed")
    config = Config()
    config.set_main_option("script_location", str(Path(found.origin).parent).replace("%", "%%"))
    config.attributes["settings"] = settings
    return config


def upgrade_to_head(settings: Settings) -> None:
    """Brings the database to the newest revision; safe to repeat, and to run from several processes at once."""
    command.upgrade(alembic_config(settings), "head")


def downgrade(settings: Settings, revision: str) -> None:
    """Goes back to ``revision`` (``base``: an empty database). Raises SpecError where there is no such revision."""
    config = alembic_config(settings)
    try:
        ScriptDirectory.from_config(config).get_revisions(revision)
    except CommandError as error:
        detail = f"there is no revision {revision[:60]!r}: name one of this version's, or base"
        raise SpecError("database.revision", detail, [FieldError(detail, field="--downgrade")]) from error
    command.downgrade(config, revision)


def head_revision(settings: Settings) -> str:
    """The newest revision that this code knows."""
    head = ScriptDirectory.from_config(alembic_config(settings)).get_current_head()
    if head is None:
        raise RuntimeError("there are no migrations")
    return head


def current_revision(settings: Settings) -> str | None:
    """The database's revision; ``None``: it is empty."""
    engine = make_engine(settings)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def main(argv: list[str] | None = None) -> int:
    """``migrate [--downgrade REVISION]``; the exit code."""
    parser = argparse.ArgumentParser(prog="capreplay migrate", description="Bring the database to the newest revision.")
    parser.add_argument("--downgrade", metavar="REVISION", help="go back to this revision instead")
    arguments = parser.parse_args(argv)
    settings = load_settings()
    if arguments.downgrade:
        downgrade(settings, arguments.downgrade)
    else:
        upgrade_to_head(settings)
    return 0
