"""What the verbs of the service share: settings with the command line's overrides, and the database's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from api.cli.options import options

if TYPE_CHECKING:
    from models.services import Services
    from models.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

data_dir_option = options(
    click.option(
        "--data-dir", type=click.Path(path_type=Path), help="Data folder; default: CAPREPLAY_DATA_DIR or data."
    )
)


def settings_with(**overrides: Any) -> Settings:
    """The settings of the environment; an override that is ``None`` leaves the variable's value.

    Raises:
        SpecError: naming each variable that is wrong, and the cure.
    """
    from pydantic import ValidationError

    from models.settings import Settings
    from replay.errors import SpecError
    from replay.faults import plain_faults

    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        faults = [
            replace(one, field=one.field and f"CAPREPLAY_{one.field.replace('.', '_').upper()}")
            for one in plain_faults(error.errors(include_url=False, include_input=False))
        ]
        first = f"{faults[0].field}: {faults[0].detail}" if faults[0].field else faults[0].detail
        raise SpecError("settings", f"the settings cannot be used: {first}", faults) from None


@contextmanager
def open_services(settings: Settings, *, ring: bool = False) -> Iterator[Services]:
    """The process's services on a database that is at this version's schema; SQLite is brought there.

    Raises:
        SpecError: where another database is not at this version's schema.
    """
    from models.services import build_services

    require_schema(settings)
    services = build_services(settings, ring=ring)
    try:
        yield services
    finally:
        services.database.close()


def require_schema(settings: Settings) -> None:
    """SQLite is migrated here; for another database the schema is only checked.

    Raises:
        SpecError: naming the command that cures it.
    """
    from models.migrate import current_revision, head_revision, upgrade_to_head
    from replay.errors import SpecError

    if settings.resolved_database_url.startswith("sqlite"):
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        upgrade_to_head(settings)
    elif current_revision(settings) != head_revision(settings):
        raise SpecError("database.schema", "the database is not at this version's schema: run capreplay migrate first")
