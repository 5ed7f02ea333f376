"""Celery tasks: thin, each one call."""

from __future__ import annotations

from typing import Any

from models.broker import DISPATCH_TASK, REAP_TASK, RUN_TASK, SWEEP_TASK, TICK_TASK
from worker import ticks
from worker.app import app
from worker.context import services
from worker.heartbeat import end_process


def run(task: Any, job_id: str) -> None:
    """Runs one job; its row, not this message, is the promise."""
    from worker.execution import execute

    execute(services(), job_id, task.request.hostname, escalate=end_process)


def dispatch() -> None:
    """Sends what waits unsent."""
    ticks.dispatch(services(), app)


def reap() -> None:
    """Takes jobs from silent runners."""
    ticks.reap(services())


def tick() -> None:
    """Starts what schedules have due."""
    ticks.run_schedules(services())


def sweep() -> None:
    """Deletes what nobody needs."""
    ticks.sweep(services())


app.task(name=RUN_TASK, bind=True)(run)
app.task(name=DISPATCH_TASK)(dispatch)
app.task(name=REAP_TASK)(reap)
app.task(name=TICK_TASK)(tick)
app.task(name=SWEEP_TASK)(sweep)
