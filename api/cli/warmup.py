"""``capreplay warmup``: compile once, so that the first answer is quick."""

from __future__ import annotations

import time

import click

from api.cli.options import options
from api.cli.output import json_option, print_json


@click.command("warmup", short_help="Compile the replay kernels into the cache.")
@options(json_option)
def command(as_json: bool) -> None:
    """Compile the replay kernels into the cache.

    They are kept in NUMBA_CACHE_DIR, or in the user's cache folder, and reused by every process of this version.
    """
    from replay.kernels.warmup import warm_up

    started = time.perf_counter()
    warm_up()
    wall_s = round(time.perf_counter() - started, 3)
    if as_json:
        print_json({"wall_s": wall_s})
    else:
        click.echo(f"kernels ready in {wall_s:.1f} s")
