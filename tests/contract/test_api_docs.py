"""docs/api.md: its commands run as they stand, its table of errors is the code's."""

import ast
import queue
import re
import subprocess
import threading
from pathlib import Path

import pytest
from apptools import CSV, Site, client

from api.auth import FAILURES_PER_MINUTE
from api.pagination import MAX_LIMIT
from api.streams import MAX_STREAMS_PER_TENANT
from api.strict import MAX_JSON_BYTES, MAX_JSON_DEPTH
from models.principal import SCOPES
from replay.planning.document import parse_report

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


class WorkingDoorbell:
    """A worker in a thread: does each job that it is told of, through the code that real workers run."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._jobs: queue.Queue[str | None] = queue.Queue()
        self.outcomes: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ring(self, jobs) -> None:
        for job_id, _queue in jobs:
            self._jobs.put(job_id)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while (job_id := self._jobs.get()) is not None:
            self.outcomes.append(self._site.made.work(job_id))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["local", "keys"])
def test_the_tour_runs_as_it_stands(serve, tmp_path, mode):
    site = serve(**({"tenants": ("a",)} if mode == "keys" else {}))
    bell = WorkingDoorbell(site)
    site.made.services.database.doorbell = bell
    tour = TEXT.split("## A tour")[1].split("\n## ")[0]
    script = "set -euo pipefail\n" + "\n".join(re.findall(r"```sh\n(.*?)```", tour, re.DOTALL))
    (tmp_path / "trace.csv").write_bytes(CSV)
    environment = {"API": site.address, "PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path), "NO_PROXY": "*"}
    environment |= {"KEY": site.made.keys["a"]} if mode == "keys" else {}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "failed" not in bell.outcomes
    assert (tmp_path / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")
    assert len((tmp_path / "report.csv").read_text().splitlines()) >= 2
    assert (tmp_path / "requests.parquet").read_bytes()[:4] == b"PAR1"
    with client(site.address, site.made.keys.get("a")) as http:
        plans = http.get("/v1/jobs?kind=plan").json()["items"]
        assert {"succeeded", "cancelled"} >= {plan["status"] for plan in plans if plan["schedule_id"] is None}
        (report,) = [r for r in http.get("/v1/reports?kind=plan").json()["items"] if r["name"] == "next year"]
        document = http.get(f"/v1/reports/{report['id']}").json()
    parsed = parse_report(document)
    assert parsed.recommendations or parsed.infeasible


def _names_a_code(node: ast.AST) -> bool:
    """``code = "..."`` in a class, or ``code="..."`` in a call."""
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)] == ["code"]
    return isinstance(node, ast.keyword) and node.arg == "code"


def _codes() -> set[str]:
    """Codes in the source of api/ and models/: class attributes and keyword arguments."""
    found = set()
    for folder in ("api", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.is_relative_to(ROOT / "api" / "cli") or path.is_relative_to(ROOT / "api" / "pages"):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                value = node.value if _names_a_code(node) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found.add(value.value)
    assert len(found) > 40
    return found


def _documented() -> set[str]:
    table = TEXT.split("## Errors")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| \d{3} \|", table, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row)}


def test_every_code_is_in_the_table():
    assert _codes() - _documented() == set()


def test_every_code_of_the_table_is_in_the_code():
    made_of_parts = {f"{kind}.not_found" for kind in ("job", "trace", "report", "schedule", "key")}
    of_the_domain = {code for code in _documented() if code.endswith(".*")}
    of_the_domain |= {f"catalogue.{word}_{kind}" for word in ("unknown", "ambiguous") for kind in ("gpu", "model")}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "replay").rglob("*.py"))
    of_the_domain |= {code for code in _documented() if f'"{code}"' in sources}
    assert _documented() - _codes() - made_of_parts - of_the_domain == set()


def test_the_numbers_are_the_codes():
    for number in (MAX_LIMIT, MAX_STREAMS_PER_TENANT, MAX_JSON_DEPTH):
        assert f" {number} " in TEXT
    assert MAX_JSON_BYTES == 1024**2
    assert FAILURES_PER_MINUTE == 30
    for scope in SCOPES:
        assert f"| `{scope}` |" in TEXT
