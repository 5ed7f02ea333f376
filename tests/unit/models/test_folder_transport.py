"""The folder queue: whole messages, in order, each to one reader."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from queue import Empty

import celery
import pytest

from models.broker import make_celery, send_run
from models.doorbell import BackgroundDoorbell
from models.settings import Settings


@pytest.fixture
def app(tmp_path: Path) -> celery.Celery:
    return make_celery(Settings(data_dir=tmp_path))


def read_all(app: celery.Celery) -> list[str]:
    """Job ids of all messages, in the order a worker gets them."""
    found = []
    with app.connection_for_read() as connection, connection.SimpleQueue("replay") as queue:
        while True:
            try:
                message = queue.get(block=False)
            except Empty:
                return found
            found.append(message.payload[0][0])
            message.ack()


def test_messages_come_in_order_and_hold_only_the_id(app: celery.Celery, tmp_path: Path) -> None:
    for n in range(5):
        send_run(app, f"job_{n}", "replay")
    (first, *_) = sorted((tmp_path / "queue").iterdir())
    headers = json.loads(first.read_text())["headers"]
    assert (headers["task"], headers["id"]) == ("replay.run", "job_0")
    assert read_all(app) == [f"job_{n}" for n in range(5)]
    assert list((tmp_path / "queue").iterdir()) == []


def test_readers_never_meet_half_a_message(app: celery.Celery) -> None:
    send_run(app, "job_0", "replay")
    read_all(app)
    done = threading.Event()
    found: list[str] = []
    errors: list[Exception] = []

    def read() -> None:
        try:
            while not done.is_set():
                found.extend(read_all(app))
            found.extend(read_all(app))
        except Exception as error:  # noqa: BLE001 - told to the test's thread
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(200):
        send_run(app, f"job_{n}", "replay")
    done.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert sorted(found) == sorted(f"job_{n}" for n in range(200))


def test_the_doorbell_sends_in_the_background_and_notes_what_went_out(app: celery.Celery) -> None:
    noted: list[str] = []
    bell = BackgroundDoorbell(app, noted.extend)
    bell.ring([(f"job_{n}", "replay") for n in range(3)])
    bell.close()
    assert noted == ["job_0", "job_1", "job_2"]
    assert read_all(app) == noted
