"""What the dispatcher sends, and what it leaves alone, over a real folder queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servicetools import made_job

from models import jobs
from models.broker import count_messages, make_celery
from models.services import Services
from models.settings import Settings
from models.tables import Job
from worker import ticks


def add_job(services: Services) -> Job:
    with services.database.write() as session:
        return jobs.create(session, made_job(services)).job


def test_messages_do_not_pile_up_while_nobody_claims(services: Services, clock: Any) -> None:
    app = make_celery(services.settings)
    for _ in range(3):
        add_job(services)
    assert ticks.dispatch(services, app) == 3
    for _ in range(20):
        clock.advance(seconds=481)
        assert ticks.dispatch(services, app) == 0
    assert count_messages(app, jobs.QUEUE) == 3
    add_job(services)
    assert ticks.dispatch(services, app) == 1, "a new job is told at once"
    assert count_messages(app, jobs.QUEUE) == 4


def test_lost_messages_are_sent_again(services: Services, clock: Any) -> None:
    app = make_celery(services.settings)
    for _ in range(3):
        add_job(services)
    ticks.dispatch(services, app)
    next((services.settings.data_dir / "queue").glob("*.msg")).unlink()
    assert ticks.dispatch(services, app) == 0, "not before the wait is over"
    clock.advance(seconds=61)
    assert ticks.dispatch(services, app) == 3
    clock.advance(seconds=121)
    assert ticks.dispatch(services, app) == 0, "five messages wait for three jobs"


def test_a_broker_that_does_not_answer_holds_no_messages(tmp_path: Path) -> None:
    down = make_celery(Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1:9/0", secret_key="x" * 16))
    assert count_messages(down, jobs.QUEUE) == 0
