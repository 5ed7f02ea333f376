"""Small helpers to start, await and stop a child process. Waits are for conditions, bounded, never for a fixed time."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable


class ServiceMissingError(RuntimeError):
    """A server or program that the tests need is neither running nor installed; the message says the cure."""


def free_port() -> int:
    """A TCP port on the loopback that nobody listened to a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Returns once `condition` holds; TimeoutError naming `what` if that takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


def stop_process(process: subprocess.Popen[bytes], first: signal.Signals, grace_s: float = 15.0) -> None:
    """Sends `first`, and SIGKILL if the process is still there after `grace_s`; returns when it has been reaped."""
    if process.poll() is None:
        process.send_signal(first)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
