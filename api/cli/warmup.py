"""``capreplay warmup``: compile once, so that the first answer is quick."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.options import options
from api.cli.output import json_option, print_json
from api.cli.run import warm_up
from api.cli.service import data_dir_option, settings_with


@click.command("warmup", short_help="Compile the replay kernels into the cache.")
@options(
    data_dir_option,
    json_option,
)
def command(data_dir: Path | None, as_json: bool) -> None:
    """Compile the replay kernels into the cache.

    With --data-dir or CAPREPLAY_DATA_DIR into the cache that the service uses there; else into NUMBA_CACHE_DIR or the
    user's cache folder, which run and replay use.
    """
    settings = settings_with(data_dir=data_dir)
    if "data_dir" in settings.model_fields_set:
        from models.process import prepare_process

        prepare_process(settings)
    wall_s = round(warm_up(), 3)
    if as_json:
        print_json({"wall_s": wall_s})
    else:
        click.echo(f"kernels ready in {wall_s:.1f} s")
