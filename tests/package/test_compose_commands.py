"""The compose file's services, each run by its own command, environment and health check, without a Docker engine.

Only what a container network gives is put in its place: host names, ports and the folder /data.
"""

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from services.process import free_port, stop_process, wait_until
from services.redis_server import RedisServer
from sqlalchemy.engine import make_url

PASSWORD = "password-of-a-test"
SECRETS = {
    "POSTGRES_PASSWORD": PASSWORD,
    "REDIS_PASSWORD": PASSWORD,
    "CAPREPLAY_SECRET_KEY": "secret-key-of-a-test",
}
LASTING = ("api", "worker-replay", "worker-control", "beat")
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-01-05 10:00:{second:02d}.000000,100,{10 + second}\n" for second in range(60)
)


class Deployment:
    """The compose file on this machine: `run` for what ends, `start` for what lasts."""

    def __init__(self, services: dict[str, Any], database_url: str, redis_url: str, folder: Path) -> None:
        self.services = services
        self.folder = folder
        self.api_port = free_port()
        self._database_url, self._redis_url = database_url, redis_url
        self._metrics_ports = {name: str(free_port()) for name in LASTING}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, name: str) -> dict[str, str]:
        given = {key: _interpolate(str(value)) for key, value in self.services[name]["environment"].items()}
        database, broker = make_url(given["CAPREPLAY_DATABASE_URL"]), make_url(given["CAPREPLAY_BROKER_URL"])
        assert (database.host, database.password) == ("postgres", PASSWORD)
        assert (broker.host, broker.password) == ("redis", PASSWORD)
        here = {
            "CAPREPLAY_DATA_DIR": str(self.folder / "data"),
            "CAPREPLAY_DATABASE_URL": self._database_url,
            "CAPREPLAY_BROKER_URL": self._redis_url,
        }
        if name == "api":
            here |= {"CAPREPLAY_HOST": "127.0.0.1", "CAPREPLAY_PORT": str(self.api_port)}
        for key in ("CAPREPLAY_METRICS_PORT", "CAPREPLAY_WORKER_METRICS_PORT"):
            if key in given:
                here[key] = self._metrics_ports[name]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CAPREPLAY_")}
        # Kernels for this machine, not for any: they come from the cache that other tests filled.
        return kept | {key: value for key, value in given.items() if key != "NUMBA_CPU_NAME"} | here

    def command(self, words: list[str]) -> list[str]:
        program = {"capreplay": str(Path(sys.executable).with_name("capreplay")), "python": sys.executable}[words[0]]
        return [program, *(word.replace("127.0.0.1:8000", f"127.0.0.1:{self.api_port}") for word in words[1:])]

    def run(self, name: str, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(words),
            env=self.environment(name),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                self.command(self.services[name]["command"]),
                env=self.environment(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def healthy(self, name: str) -> bool:
        assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()[-3000:]
        return self.healthy_now(name)

    def healthy_now(self, name: str) -> bool:
        return self.run(name, self.services[name]["healthcheck"]["test"][1:]).returncode == 0

    def ask(self, method: str, path: str, key: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api_port}{path}",
            data=body,
            method=method,
            headers={"Authorization": f"Bearer {key}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def _interpolate(text: str) -> str:
    """What compose makes of `text`: secrets from the environment, other variables by their defaults."""
    for name, value in SECRETS.items():
        before, found, after = text.partition(f"${{{name}:?")
        if found:
            text = before + value + after.partition("}")[2]
    return "" if text.startswith("${") else text


@pytest.fixture
def deployment(project_root: Path, tmp_path: Path, postgres_database: Callable[[], str]) -> Iterator[Deployment]:
    services = yaml.safe_load((project_root / "docker-compose.yml").read_text())["services"]
    redis = RedisServer(tmp_path / "redis", password=PASSWORD)
    redis.start()
    (tmp_path / "data").mkdir()
    deployed = Deployment(services, postgres_database(), redis.url, tmp_path)
    yield deployed
    for name in reversed(deployed.processes):
        stop_process(deployed.processes[name], signal.SIGTERM, grace_s=30)
    redis.stop()


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.timeout(300)
def test_the_services_start_get_healthy_and_do_a_job(deployment: Deployment) -> None:
    migrated = deployment.run("migrate", deployment.services["migrate"]["command"])
    assert migrated.returncode == 0, migrated.stderr
    for name in LASTING:
        deployment.start(name)
    for name in LASTING:
        wait_until(lambda name=name: deployment.healthy(name), f"{name} to be healthy", timeout_s=120)

    made = deployment.run("api", shlex.split("capreplay keys create --json --name test"))
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)["key"]
    trace = deployment.ask("PUT", "/v1/traces?name=test", key, gzip.compress(TRACE.encode()))

    def cleaned() -> bool:
        job = deployment.ask("GET", f"/v1/jobs/{trace['ingest_job_id']}", key)
        assert job["status"] not in ("failed", "cancelled"), job
        return bool(job["status"] == "succeeded")

    wait_until(cleaned, "the trace to be cleaned by a worker", timeout_s=120)
    assert deployment.ask("GET", f"/v1/traces/{trace['id']}", key)["requests"] == 60

    for name in LASTING:
        process = deployment.processes[name]
        process.send_signal(signal.SIGTERM)
    for name in LASTING:
        assert deployment.processes[name].wait(60) in (0, -signal.SIGTERM), (
            deployment.folder / f"{name}.log"
        ).read_text()[-2000:]
    wait_until(
        lambda: not deployment.healthy_now("beat"), "the health check to notice that beat has gone", timeout_s=60
    )
