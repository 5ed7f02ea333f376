"""The embedded worker's supervisor, with a stand-in for the worker."""

from __future__ import annotations

import sys
from pathlib import Path

from services.process import wait_until

from models.settings import Settings
from models.supervisor import WorkerSupervisor

COUNTS = "import os, sys, time; open(sys.argv[1], 'a').write(os.environ['CAPREPLAY_DATA_DIR'] + '\\n'); time.sleep(60)"
DIES = COUNTS.replace("time.sleep(60)", "sys.exit(9)")


def test_a_worker_that_dies_is_started_again_with_the_same_settings(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    supervisor = WorkerSupervisor(Settings(data_dir=tmp_path), [sys.executable, "-c", DIES, str(starts)])
    supervisor.start()
    wait_until(lambda: starts.exists() and len(starts.read_text().splitlines()) >= 2, "a second start")
    supervisor.stop()
    assert set(starts.read_text().splitlines()) == {str(tmp_path)}
    assert supervisor.pid is None


def test_stop_ends_the_worker(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    supervisor = WorkerSupervisor(Settings(data_dir=tmp_path), [sys.executable, "-c", COUNTS, str(starts)])
    supervisor.start()
    wait_until(lambda: starts.exists() and starts.read_text() != "", "the start")
    supervisor.stop()
    assert supervisor.pid is None
    assert len(starts.read_text().splitlines()) == 1
