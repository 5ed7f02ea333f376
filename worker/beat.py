"""``capreplay beat``: sends the ticks. Several may run: a lock in Redis lets one send, another takes over."""

from __future__ import annotations

import argparse
import sys

from models.settings import load_settings


def main(argv: list[str] | None = None) -> int:
    """Runs until it is told to stop; the exit code."""
    parser = argparse.ArgumentParser(
        prog="capreplay beat", description="Send the ticks that drive schedules and repairs."
    )
    parser.add_argument("--check", action="store_true", help="only say whether the clock runs; exit 1 if not")
    arguments = parser.parse_args(argv)
    settings = load_settings()
    if settings.embedded:
        raise SystemExit("beat is not needed in embedded mode: the worker that capreplay serve starts ticks by itself")
    if arguments.check:
        return check()
    from worker.app import app

    app.start(["beat", "--scheduler", "redbeat.RedBeatScheduler", "--loglevel", settings.log_level, "--pidfile="])
    return 0


def check() -> int:
    """The container's health check: 0 where some beat holds the lock, which ends 15 s after its holder fell silent."""
    from redbeat.schedulers import RedBeatConfig, get_redis
    from redis.exceptions import RedisError

    from worker.app import app

    try:
        alive = bool(get_redis(app).exists(RedBeatConfig(app).lock_key))
    except RedisError as error:
        sys.stderr.write(f"the broker does not answer: {error}\n")
        return 1
    sys.stderr.write("alive\n" if alive else "no beat holds the lock\n")
    return 0 if alive else 1
