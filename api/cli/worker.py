"""``capreplay worker``: a worker of a deployment; this process becomes it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from api.cli.options import options
from api.cli.service import data_dir_option, settings_with


@click.command("worker", short_help="Start a worker that takes jobs from the queue.")
@options(
    click.option(
        "--queue", "queues", multiple=True, type=click.Choice(["replay", "control"]), help="Repeatable; default: both."
    ),
    click.option("--concurrency", type=click.IntRange(min=1), help="Job processes; default: one a core."),
    click.option("--check", is_flag=True, help="Only say whether a worker of this host is alive; exit 1 if not."),
    data_dir_option,
)
def command(queues: tuple[str, ...], concurrency: int | None, check: bool, data_dir: Path | None) -> None:
    """Start a worker that takes jobs from the queue.

    For deployments with PostgreSQL and Redis (CAPREPLAY_DATABASE_URL, CAPREPLAY_BROKER_URL); capreplay serve starts its
    own in embedded mode. SIGTERM gives running jobs back to the queue.
    """
    become("worker", ["--check"] if check else [], data_dir=data_dir, queues=queues or None, concurrency=concurrency)


def become(
    role: str,
    words: list[str],
    *,
    data_dir: Path | None = None,
    queues: tuple[str, ...] | None = None,
    concurrency: int | None = None,
) -> NoReturn:
    """Replaces this process by a worker's: signals then reach it directly, as containers expect.

    Raises:
        SpecError: naming each setting that is wrong.
    """
    from models.settings import child_environment

    settings = settings_with(data_dir=data_dir, worker_queues=queues, worker_concurrency=concurrency)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "worker", role, *words], child_environment(settings))  # noqa: S606 - our own interpreter and module
