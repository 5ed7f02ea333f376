"""What the browser tests share: the service under test, and what a visitor does on its pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Page

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PROGRAM = Path(sys.executable).parent / "capreplay"
JOB_TIMEOUT_MS = 240_000
ROWS = 300


@dataclass
class Visit:
    """A page of a browser, what it complained of, and the service it looks at."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of complaints that the test provokes."""

    def go(self, path: str) -> None:
        """Opens a page of the service."""
        self.page.goto(self.base + path)

    def note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def unexpected(self) -> list[str]:
        return [one for one in self.complaints if not any(part in one for part in self.expected)]


@contextmanager
def service(folder: Path, **variables: str) -> Iterator[str]:
    """``capreplay serve`` with its worker; yields the address. Stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CAPREPLAY_LOG_LEVEL": "WARNING"} | variables
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(PROGRAM), "serve", "--port", "0", "--json", "--data-dir", str(folder / "data")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if line.rstrip() == "}":
                    break
            assert text, (folder / "log").read_text()
            yield json.loads(text)["address"]
        finally:
            process.terminate()
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


def write_trace(path: Path, shift: int = 0) -> Path:
    """A small trace. Another ``shift`` is another trace: equal content would be answered with the one that is there."""
    rows = [f"{i * 0.4:.3f},{150 + shift + 53 * (i % 23)},{15 + (7 * i) % 90}" for i in range(ROWS)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def upload(visit: Visit, file: Path, name: str = "") -> str:
    """Uploads a file from the first page and waits until its ingest is over; the path of the trace's page."""
    visit.go("/")
    visit.page.set_input_files("#file", file)
    visit.page.fill("#name", name)
    visit.page.click("#upload-button")
    visit.page.wait_for_url("**/traces/trc_*")
    visit.page.wait_for_selector("text=/How it was read|could not be read/", timeout=JOB_TIMEOUT_MS)
    return visit.page.url.removeprefix(visit.base)


def make_plan(visit: Visit, trace_path: str, name: str, gpu: str = "H100-SXM", growth: str = "1") -> str:
    """Plans from a trace's page and waits for the report; the path of the report's page."""
    page = visit.page
    visit.go(trace_path)
    page.click("text=Plan capacity for this trace")
    page.fill("#f-name", name)
    page.fill("#f-growth", growth)
    page.fill("#f-model", "meta-llama/Llama-3.1-8B")
    page.check(f"input[name=gpus][value='{gpu}']")
    for size in ("2", "4", "8"):
        page.uncheck(f"input[name=tp][value='{size}']")
    page.click("text=Start the plan")
    page.wait_for_url("**/reports/rep_*", timeout=JOB_TIMEOUT_MS)
    return page.url.removeprefix(visit.base)


Open = Callable[..., Visit]
