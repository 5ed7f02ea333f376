"""The whole service on this machine in one command: ``python examples/demo.py [TRACE] [--keep]``, or ``make demo``.

Starts ``capreplay serve`` on a free port with its own data folder, and from there on talks REST only: uploads the
trace, waits until it is read, posts a plan, follows the job, prints the recommendations and saves the report as HTML.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

SAMPLE = Path(__file__).parent / "chat-hour.csv.gz"
START_TIMEOUT_S = 120


class RefusedError(Exception):
    """The service's own words for why a request was refused."""


def call(method: str, url: str, body: dict[str, Any] | BinaryIO | None = None, length: int | None = None) -> Any:
    """One request; the JSON answer. A file as ``body`` is streamed."""
    headers = {"Accept": "application/json"}
    data: bytes | BinaryIO | None
    if isinstance(body, dict):
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    else:
        data = body
        if length is not None:
            headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - our own loopback
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        problem = json.load(error)
        faults = [f"  {one.get('field') or ''}: {one['detail']}" for one in problem.get("errors", [])]
        raise RefusedError("\n".join([problem.get("detail", str(error)), *faults])) from None


def wait_for_job(base: str, job_id: str, what: str) -> dict[str, Any]:
    """Follows a job to its end, printing its progress; the finished job."""
    shown = -1
    while True:
        job: dict[str, Any] = call("GET", f"{base}/v1/jobs/{job_id}")
        share = int(100 * job["progress"])
        if job["status"] in ("succeeded", "failed", "cancelled"):
            say(f"{what}: {job['status']}")
            if job["status"] != "succeeded":
                error = job["error"] or {"detail": job["status"], "errors": []}
                raise RefusedError("\n".join([error["detail"], *(f"  {one['detail']}" for one in error["errors"])]))
            return job
        if share != shown:
            say(f"{what}: {job['status']} {share} %")
            shown = share
        time.sleep(0.5)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def run(base: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Upload, ingest, plan: the report document and its id."""
    trace_file = arguments.trace
    query = urllib.parse.urlencode([("name", trace_file.name), *(("map", pair) for pair in arguments.map)])
    with trace_file.open("rb") as file:
        say(f"uploading {trace_file.name} ({trace_file.stat().st_size:,} bytes)")
        trace = call("PUT", f"{base}/v1/traces?{query}", file, trace_file.stat().st_size)
    wait_for_job(base, trace["ingest_job_id"], "reading the trace")
    plan = {
        "name": f"demo: {trace_file.name}",
        "trace_id": trace["id"],
        "model": arguments.model,
        "gpus": arguments.gpu.split(","),
        "tp": [int(tp) for tp in arguments.tp.split(",")],
        "objectives": [
            {"metric": "ttft", "percentile": 99, "threshold_s": 2.0},
            {"metric": "itl", "percentile": 99, "threshold_s": 0.1},
        ],
    }
    job = call("POST", f"{base}/v1/plans", plan)
    done = wait_for_job(base, job["id"], "planning")
    report_id = done["report_id"]
    return call("GET", f"{base}/v1/reports/{report_id}"), report_id


def started(server: subprocess.Popen[str]) -> dict[str, str]:
    """What ``capreplay serve --json`` says once it listens."""
    text = ""
    if server.stdout is None:
        raise RuntimeError("the server's output is not read")
    for line in server.stdout:
        text += line
        try:
            answer: dict[str, str] = json.loads(text)
        except ValueError:
            continue
        return answer
    raise RefusedError("the service did not start; its log is above")


def wait_until_ready(base: str) -> None:
    """Until the API answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            call("GET", f"{base}/healthz")
        except (OSError, RefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def main() -> int:
    """The exit code: 0 where a report was made, 2 where the trace or the plan was refused."""
    parser = argparse.ArgumentParser(description="Upload a trace, plan, print the recommendations.")
    parser.add_argument("trace", nargs="?", type=Path, default=SAMPLE, help="a request log of any known format")
    parser.add_argument(
        "--map", action="append", default=[], metavar="FIELD=COLUMN", help="take FIELD, e.g. arrival, from COLUMN"
    )
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
    parser.add_argument("--gpu", default="H100-SXM,A100-SXM-80GB,L40S")
    parser.add_argument("--tp", default="1,2,4")
    parser.add_argument("--data-dir", type=Path, default=Path("data") / "demo")
    parser.add_argument("--keep", action="store_true", help="leave the service running afterwards, until Ctrl-C")
    arguments = parser.parse_args()
    if not arguments.trace.is_file():
        parser.error(f"there is no file {arguments.trace}")
    arguments.data_dir.mkdir(parents=True, exist_ok=True)
    log_path = arguments.data_dir / "demo.log"
    command = [str(Path(sys.executable).parent / "capreplay"), "serve", "--port", "0", "--json"]
    with log_path.open("w") as log:
        server = subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--data-dir", str(arguments.data_dir)], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            return demonstrate(server, arguments)
        except RefusedError as refusal:
            say(f"{refusal}\n(the service's log: {log_path})")
            return 2
        except KeyboardInterrupt:
            return 130
        finally:
            server.terminate()
            server.wait(60)


def demonstrate(server: subprocess.Popen[str], arguments: argparse.Namespace) -> int:
    """Everything between the start and the stop of the service."""
    from api.cli.text import plan_text

    base = started(server)["address"]
    wait_until_ready(base)
    say(f"the service answers at {base}")
    document, report_id = run(base, arguments)
    page = arguments.data_dir / f"{report_id}.html"
    with urllib.request.urlopen(f"{base}/v1/reports/{report_id}.html", timeout=60) as answer:  # noqa: S310
        page.write_bytes(answer.read())
    write: Callable[[str], None] = print
    write(plan_text(document))
    write(f"\nHTML report: {page.absolute().as_uri()}")
    if arguments.keep:
        write(f"Live report: {base}/reports/{report_id}  (Ctrl-C stops the service)")
        server.wait()
    else:
        write(f"To browse it live: make demo ARGS=--keep, or capreplay serve --data-dir {arguments.data_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
