"""Runs one server for a test session and stops it when the session ends, even if the session was killed.

    python -m services.guard postgres|redis FOLDER SESSION_PID STATE_FILE

Writes {"url", "pid"} to STATE_FILE when the server answers, and removes it last of all.
"""

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from services.postgres_server import PostgresServer
from services.redis_server import RedisServer

KINDS: dict[str, type[PostgresServer] | type[RedisServer]] = {"postgres": PostgresServer, "redis": RedisServer}


def alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main() -> None:
    kind, folder, session_pid, state_file = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    server = KINDS[kind](folder)
    try:
        server.start()
        draft = state_file.with_suffix(".draft")
        draft.write_text(json.dumps({"url": server.url, "pid": os.getpid()}))
        draft.replace(state_file)
        while not stopping.wait(0.5) and alive(session_pid) and server.process and server.process.poll() is None:
            pass
    finally:
        server.stop()
        if not alive(session_pid):  # a killed session cannot clean up: its folder goes with its last server
            shutil.rmtree(state_file.parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        state_file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
