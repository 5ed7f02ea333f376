"""The broker is a doorbell: it may lose everything, or restart, and no job is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from services.redis_server import RedisServer
from stack import Stack, long_replay, quick_replay, stack_of

from models.broker import count_messages, make_celery
from models.doorbell import BackgroundDoorbell, send_all
from models.settings import Settings

pytestmark = pytest.mark.timeout(240)


def test_jobs_whose_messages_are_lost_are_sent_again(stack: Stack) -> None:
    job = stack.upload().job
    stack.services.database.doorbell.close()  # the message is out now
    if stack.embedded:
        for message in (stack.settings.data_dir / "queue").iterdir():
            message.unlink()
    else:
        import redis

        with redis.Redis.from_url(stack.settings.broker_url) as client:
            client.flushdb()
    stack.start()
    assert stack.wait(job.id).job.status == "succeeded"


@pytest.mark.postgres
@pytest.mark.redis
def test_redis_restarts_while_a_job_runs_and_loses_its_data(
    tmp_path: Path, postgres_database: object, private_redis: RedisServer
) -> None:
    with stack_of(
        tmp_path / "data",
        database_url=postgres_database(),
        broker_url=private_redis.url,
        secret_key="a secret for tests only",
        worker_concurrency=1,
    ) as stack:
        worker = stack.start()
        trace_id = stack.ready_trace()
        running = stack.replay(trace_id, long_replay()).job
        stack.wait_running(running.id)
        private_redis.stop()
        waiting = stack.replay(trace_id, quick_replay()).job  # nobody can be told of it; the request does not care
        private_redis.start()
        assert stack.wait(running.id).job.status == "succeeded", stack.tail()
        assert stack.wait(waiting.id).job.status == "succeeded", stack.tail()
        assert worker.poll() is None, "the worker must survive a restart of Redis"
        assert stack.detail(running.id).job.attempt == 1


@pytest.mark.redis
def test_the_messages_that_wait_in_redis_are_counted(tmp_path: Path, private_redis: RedisServer) -> None:
    app = make_celery(Settings(data_dir=tmp_path, broker_url=private_redis.url, secret_key="x" * 16))
    assert count_messages(app, "replay") == 0
    assert send_all(app, [("job_1", "replay"), ("job_2", "replay")]) == ["job_1", "job_2"]
    assert count_messages(app, "replay") == 2
    app.close()


def test_a_broker_that_is_down_is_noticed_once_and_holds_nobody_up(tmp_path: Path) -> None:
    down = make_celery(Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1:9/0", secret_key="x" * 16))
    noted: list[str] = []
    bell = BackgroundDoorbell(down, noted.extend)
    began = time.monotonic()
    bell.ring([("job_1", "replay"), ("job_2", "replay")])
    assert time.monotonic() - began < 1, "a send takes seconds with the broker down: it is a thread's"
    assert send_all(down, [("job_1", "replay"), ("job_2", "replay")]) == []
    bell.close()
    assert noted == []
