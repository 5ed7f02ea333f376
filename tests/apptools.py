"""Applications for tests: a real server on a free port over a SQLite file of its own, and rows to read from it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from report_documents import plan_document, replay_document

from api.app import create_app
from models.ids import new_id
from models.migrate import upgrade_to_head
from models.principal import LOCAL_TENANT_ID, SCOPES, Principal
from models.services import Services, build_services
from models.settings import Settings
from models.tables import Blob, Job, Report, Trace
from models.use_cases import keys
from replay.traces.ingest import ingest
from replay.traces.options import IngestOptions
from worker.execution import execute

CSV = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:17:{second:02d}.5000000,{400 + second},{10 + second}\n" for second in range(60))
).encode()
PLAN = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpus": ["H100-SXM"],
    "tp": [1, 2],
    "objectives": [{"metric": "ttft", "percentile": 99, "threshold_s": 2}],
}
REPLAY = {"deployment": {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM", "tp": 1, "replicas": 2}}


def calibration_document(**changes: Any) -> dict[str, Any]:
    """A calibration as the verb writes it."""
    shipped = {
        "kernels_factor": 1.0, "decode_attention_factor": 1.0, "decode_row_s": 25e-6, "host_s": 5e-4, "request_s": 8e-3
    }  # fmt: skip
    values = shipped | {"kernels_factor": 1.1}
    return {
        "deployment": {
            "model": "meta-llama/Llama-3.1-8B", "gpu": "H100-SXM", "tp": 1, "family": "vllm", "weight_dtype": "bf16",
            "kv_dtype": "bf16",
        },
        "base_id": "h100_sxm/vllm/1+2",
        "async_scheduling": True,
        "parameters": [
            {"name": name, "value": values[name], "shipped": value, "sd": None, "identified": False}
            for name, value in shipped.items()
        ],
        "errors": [],
        "sources": ["run.json"],
        "measurements": 100,
        "date": "2026-11-29",
        **changes,
    }  # fmt: skip


IDS = {prefix: f"{prefix}_{'0' * 32}" for prefix in ("trc", "job", "rep", "sch", "key", "upl", "cal")}
TUS = {"Tus-Resumable": "1.0.0"}
"""Without it the routes of resumable uploads say nothing else."""
PATHS = {
    "trace_id": IDS["trc"],
    "job_id": IDS["job"],
    "report_id": IDS["rep"],
    "schedule_id": IDS["sch"],
    "key_id": IDS["key"],
    "upload_id": IDS["upl"],
    "calibration_id": IDS["cal"],
    "key": "no-such-entry",
    "key:path": "no/such-entry",
}


@dataclass
class TestApp:
    """An application with what is behind it."""

    __test__ = False

    app: FastAPI
    services: Services
    tenants: dict[str, str]
    """Tenant id by name."""
    keys: dict[str, str]
    """Text of an administrator's key by tenant name; empty in local mode."""

    def add_key(self, tenant: str, *scopes: str) -> str:
        """The text of a new key with these scopes."""
        principal = Principal(self.tenants[tenant], SCOPES)
        with self.services.database.write() as session:
            issued = keys.create_key(session, principal, self.services, name="test", scopes=frozenset(scopes))
            return issued.text

    def work(self, job_id: str) -> str:
        """Runs one job in this process, as a worker does; the outcome."""
        return execute(self.services, job_id, "test")

    def add_ready_trace(
        self,
        tenant: str = "local",
        *,
        name: str = "ready",
        stream: str | None = None,
        content: bytes = CSV,
        options: IngestOptions | None = None,
    ) -> str:
        """A trace that was ingested for real, without a worker; its id."""
        options = options or IngestOptions()
        folder = self.services.settings.data_dir
        source, canonical = folder / "source.csv", folder / "canonical.parquet"
        source.write_bytes(content)
        id_key = self.services.settings.id_key() if options.ids == "hash" else None
        report = ingest(source, canonical, options, id_key=id_key)
        hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in (source, canonical)}
        now, trace_id, job_id = self.services.clock(), new_id("trc"), new_id("job")
        with self.services.database.write() as session:
            for path, digest in hashes.items():
                session.merge(Blob(sha256=digest, bytes=path.stat().st_size, last_used_at=now))
            session.flush()
            session.add(
                Trace(
                    id=trace_id,
                    tenant_id=self.tenants[tenant],
                    name=name,
                    stream=stream,
                    status="ready",
                    source_sha256=hashes[source],
                    source_bytes=source.stat().st_size,
                    options=options.model_dump(mode="json"),
                    content_key=hashlib.sha256(trace_id.encode()).hexdigest(),
                    ingest_job_id=job_id,
                    canonical_sha256=hashes[canonical],
                    canonical_bytes=canonical.stat().st_size,
                    report=report.model_dump(mode="json"),
                    created_at=now,
                    updated_at=now,
                )
            )
        for path, digest in hashes.items():
            self.services.blobs.put_file(path, digest)
        return trace_id

    def add_job(self, tenant: str = "local", *, kind: str = "plan", status: str = "queued", **values: Any) -> str:
        """A job's row; its id."""
        now, job_id = self.services.clock(), new_id("job")
        row = {"spec": {"schema_version": 1}, "code_version": "0" * 64, "max_attempts": 3, "created_at": now} | values
        with self.services.database.write() as session:
            session.add(Job(id=job_id, tenant_id=self.tenants[tenant], kind=kind, name="n", status=status, **row))
        return job_id

    def add_report(self, tenant: str = "local", *, kind: str = "plan", document: dict[str, Any] | None = None) -> str:
        """A report with its document and its job; its id."""
        job_id = self.add_job(tenant, kind=kind, status="succeeded", progress=1.0)
        document = document or (plan_document() if kind == "plan" else replay_document())
        content = json.dumps(document).encode()
        digests = {content: hashlib.sha256(content).hexdigest()}
        if kind == "replay":
            digests[b"PAR1 table"] = hashlib.sha256(b"PAR1 table").hexdigest()
        now, report_id = self.services.clock(), new_id("rep")
        for data, digest in digests.items():
            path = self.services.settings.data_dir / "blob.part"
            path.write_bytes(data)
            self.services.blobs.put_file(path, digest)
        with self.services.database.write() as session:
            for data, digest in digests.items():
                session.merge(Blob(sha256=digest, bytes=len(data), last_used_at=now))
            session.flush()
            table = digests.get(b"PAR1 table")
            session.add(
                Report(
                    id=report_id,
                    tenant_id=self.tenants[tenant],
                    job_id=job_id,
                    kind=kind,
                    name="n",
                    trace_id=None,
                    document_sha256=digests[content],
                    document_bytes=len(content),
                    requests_sha256=table,
                    requests_bytes=len(b"PAR1 table") if table else None,
                    created_at=now,
                )
            )
        return report_id


@contextmanager
def make_app(folder: Path, template: Path, *, tenants: tuple[str, ...] = (), **settings: Any) -> Iterator[TestApp]:
    """An application over a copy of the migrated ``template``. With ``tenants`` it asks for keys."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(template, folder / "capreplay.db")
    values = {
        "requests_per_minute": 1_000_000,
        "auth": "keys" if tenants else "auto",
        "log_level": "WARNING",
    } | settings
    services = build_services(Settings(data_dir=folder, **values), ring=False)
    try:
        app = create_app(services.settings, services)
        ids, texts = {"local": LOCAL_TENANT_ID}, {}
        for name in tenants:
            with services.database.write() as session:
                ids[name] = keys.create_tenant(session, services, name).id
        made = TestApp(app, services, ids, texts)
        for name in tenants:
            texts[name] = made.add_key(name, *SCOPES)
        yield made
    finally:
        services.database.close()


def migrated_template(folder: Path) -> Path:
    """A migrated, empty SQLite file to copy from."""
    upgrade_to_head(Settings(data_dir=folder))
    return folder / "capreplay.db"


@contextmanager
def live(app: FastAPI) -> Iterator[str]:
    """Serves ``app`` on a free port of 127.0.0.1; yields its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, ws="none", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def client(address: str, key: str | None = None) -> httpx.Client:
    """A client of one server, with a key where it asks for one. No proxy of the environment's."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=address, headers=headers, timeout=30, trust_env=False)


def problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Asserts that ``response`` is a problem of this shape; the problem."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["type"] == f"urn:capreplay:problem:{body['code']}"
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["instance"] == response.url.path
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["errors"], list)
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    if code is not None:
        assert body["code"] == code
    return body


def form_token(page: httpx.Response) -> str:
    """The token of a page's forms."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found is not None
    return found.group(1)


def api_routes(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path template) of each route under /v1."""
    found = []
    for route in iter_route_contexts(app.routes):
        if isinstance(getattr(route, "original_route", route), APIRoute) and route.path.startswith("/v1"):
            # The answer to HEAD has no body to look at: the tests of resumable uploads have theirs.
            found += [(method, route.path) for method in sorted(route.methods - {"HEAD"})]
    assert len(found) > 35
    return found


def concrete(path: str) -> str:
    """The path with ids that nobody has."""
    for name, value in PATHS.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path
    return path


@dataclass
class Site:
    """A served application and a client of it (of tenant ``a`` in keys mode)."""

    made: TestApp
    address: str
    http: httpx.Client
    stack: ExitStack

    def stack_client(self) -> httpx.Client:
        """A client of the caller's own, to be closed by it: for threads."""
        return client(self.address, self.made.keys.get("a"))

    def client(self, key: str | None) -> httpx.Client:
        """A client with another key, or with none."""
        return self.stack.enter_context(client(self.address, key))


def start_site(stack: ExitStack, folder: Path, template: Path, settings: dict[str, Any]) -> Site:
    """Serves an application with these settings until ``stack`` ends."""
    context: AbstractContextManager[TestApp] = make_app(folder, template, **settings)
    made = stack.enter_context(context)
    address = stack.enter_context(live(made.app))
    return Site(made, address, stack.enter_context(client(address, made.keys.get("a"))), stack)
