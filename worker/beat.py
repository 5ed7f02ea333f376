"""``capreplay beat``: sends the ticks. Several may run: a lock in Redis lets one send, another takes over."""

from __future__ import annotations

import argparse

from models.settings import load_settings


def main(argv: list[str] | None = None) -> int:
    """Runs until it is told to stop; the exit code."""
    argparse.ArgumentParser(
        prog="capreplay beat", description="Send the ticks that drive schedules and repairs."
    ).parse_args(argv)
    settings = load_settings()
    if settings.embedded:
        raise SystemExit("beat is not needed in embedded mode: the worker that capreplay serve starts ticks by itself")
    from worker.app import app

    app.start(["beat", "--scheduler", "redbeat.RedBeatScheduler", "--loglevel", settings.log_level, "--pidfile="])
    return 0
