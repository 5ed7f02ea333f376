"""The Celery application of the workers; the module that Celery and its job processes import."""

from __future__ import annotations

from models.broker import (
    CONTROL_QUEUE,
    DISPATCH_TASK,
    REAP_TASK,
    SWEEP_TASK,
    TICK_TASK,
    make_celery,
)
from models.process import prepare_process
from models.settings import load_settings

settings = load_settings()
prepare_process(settings)
app = make_celery(settings)
app.set_default()


def _every(task: str, interval_s: float) -> dict[str, object]:
    """A static entry; a tick that no worker took before the next one is due is dropped."""
    return {"task": task, "schedule": interval_s, "options": {"queue": CONTROL_QUEUE, "expires": interval_s}}


app.conf.include = ["worker.tasks", "worker.signals"]
app.conf.beat_schedule = {
    "dispatch": _every(DISPATCH_TASK, settings.dispatch_interval_s),
    "reap": _every(REAP_TASK, settings.reap_interval_s),
    "schedules": _every(TICK_TASK, settings.schedule_interval_s),
    "sweep": _every(SWEEP_TASK, settings.sweep_interval_s),
}
