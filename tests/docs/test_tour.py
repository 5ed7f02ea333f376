"""The tour works: its shell blocks are run as they stand, in one shell, against a service of their own."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from services.process import free_port, stop_process, wait_until

TIMEOUT_S = 600


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CAPREPLAY_")}
    return kept | {"CAPREPLAY_DATA_DIR": str(tmp_path / "data"), "CAPREPLAY_PORT": str(free_port())}


@pytest.fixture
def url(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Address of a `capreplay serve` that runs for the test."""
    address = f"http://127.0.0.1:{environment['CAPREPLAY_PORT']}"
    program = str(Path(sys.executable).with_name("capreplay"))
    log_path = tmp_path / "serve.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen([program, "serve"], cwd=tmp_path, env=environment, stdout=log, stderr=log)

    def ready() -> bool:
        assert process.poll() is None, log_path.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    try:
        wait_until(ready, "the service to be ready", timeout_s=120)
        yield address
    finally:
        stop_process(process, signal.SIGTERM, grace_s=30)


@pytest.mark.timeout(TIMEOUT_S)
def test_every_command_of_the_tour_works(
    project_root: Path, tmp_path: Path, environment: dict[str, str], url: str
) -> None:
    text = (project_root / "docs" / "tour.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    script = "\n".join(blocks).replace("http://127.0.0.1:8000", url)
    for name in ("examples", ".venv"):
        if (project_root / name).exists():
            (tmp_path / name).symlink_to(project_root / name)
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S - 60,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "succeeded" in done.stdout
    for name in ("report.html", "plan.html"):
        assert "<html" in (tmp_path / name).read_text()
    assert '"capreplay.report/1"' in (tmp_path / "plan.json").read_text()
    assert (tmp_path / "plan.csv").stat().st_size > 0
