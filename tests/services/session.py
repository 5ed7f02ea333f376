"""What one test session shares among its xdist workers: a folder, and at most one server of each kind.

The controlling process (or the only one) opens and closes the session; whoever needs a server first starts it, under
a file lock. Workers find the folder by an environment variable, which they inherit.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from services.process import wait_until

FOLDER_VARIABLE = "CAPREPLAY_TEST_SESSION_DIR"
PID_VARIABLE = "CAPREPLAY_TEST_SESSION_PID"
TESTS = Path(__file__).resolve().parent.parent


def open_session() -> None:
    """Names the shared folder, which is made when somebody first needs it. To be called once, before workers start."""
    name = f"capreplay-tests-{os.getpid()}-{secrets.token_hex(8)}"
    os.environ[FOLDER_VARIABLE] = str(Path(tempfile.gettempdir()) / name)
    os.environ[PID_VARIABLE] = str(os.getpid())


def is_owner() -> bool:
    """Whether this process opened the session (an xdist worker did not)."""
    return os.environ.get(PID_VARIABLE) == str(os.getpid())


def close_session() -> None:
    """Stops the servers that the session started, by their ids, and removes the folder."""
    folder = Path(os.environ.pop(FOLDER_VARIABLE))
    del os.environ[PID_VARIABLE]
    for state_file in sorted(folder.glob("*.state")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended by itself
            _end_server(state_file)
    shutil.rmtree(folder, ignore_errors=True)


def _end_server(state_file: Path) -> None:
    os.kill(json.loads(state_file.read_text())["pid"], signal.SIGTERM)
    wait_until(lambda: not state_file.exists(), f"the end of {state_file.stem}")


def folder() -> Path:
    """The folder that this session's workers share."""
    path = Path(os.environ[FOLDER_VARIABLE])
    path.mkdir(exist_ok=True)
    path.chmod(0o711)  # PostgreSQL runs as another user when we are root, and must get through
    return path


def shared_server(kind: str) -> str:
    """URL of the session's own server of this kind ("postgres" or "redis"), started now if it is not yet there."""
    base = folder()
    state_file = base / f"{kind}.state"
    with (base / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not state_file.exists():
            _start(kind, base, state_file)
    return str(json.loads(state_file.read_text())["url"])


def _start(kind: str, base: Path, state_file: Path) -> None:
    log_path = base / f"{kind}.guard.log"
    arguments = [kind, str(base / kind), os.environ[PID_VARIABLE], str(state_file)]
    with log_path.open("wb") as log:
        guard = subprocess.Popen(
            [sys.executable, "-m", "services.guard", *arguments],
            cwd=TESTS,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def ready() -> bool:
        if guard.poll() is not None:
            raise RuntimeError(f"{kind} did not start: {log_path.read_text()[-3000:]}")
        return state_file.exists()

    wait_until(ready, f"{kind} to start", timeout_s=90)
    guard.returncode = 0  # it outlives this object on purpose; `close_session` ends it
