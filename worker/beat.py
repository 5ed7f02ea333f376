"""``capreplay beat``: sends the ticks. Several may run: a lock in Redis lets one send, another takes over."""

from __future__ import annotations

import argparse
import sys

from models.broker import beat_lock_key
from models.settings import Settings, load_settings


def main(argv: list[str] | None = None) -> int:
    """Runs until it is told to stop; the exit code."""
    parser = argparse.ArgumentParser(
        prog="capreplay beat", description="Send the ticks that drive schedules and repairs."
    )
    parser.add_argument("--check", action="store_true", help="only say whether a clock runs; exit 1 if not")
    arguments = parser.parse_args(argv)
    settings = load_settings()
    if settings.embedded and arguments.check:
        from worker.main import check as check_worker

        return check_worker(settings)  # in embedded mode the worker is the clock
    if settings.embedded:
        sys.stderr.write("beat is not needed in embedded mode: its worker ticks by itself\n")
        return 2
    if arguments.check:
        return check(settings)
    from worker.app import app

    app.start(["beat", "--scheduler", "redbeat.RedBeatScheduler", "--loglevel", settings.log_level, "--pidfile="])
    return 0


def check(settings: Settings) -> int:
    """The container's health check: 0 where some beat holds the lock, which it renews every few seconds."""
    import redis

    with redis.Redis.from_url(settings.broker_url, socket_timeout=3, socket_connect_timeout=3) as client:
        try:
            held = bool(client.exists(beat_lock_key(settings)))
        except redis.RedisError as error:
            sys.stderr.write(f"Redis does not answer: {type(error).__name__}\n")
            return 1
    sys.stderr.write("a clock runs\n" if held else "no clock runs: nobody holds the lock\n")
    return 0 if held else 1
