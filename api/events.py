"""Server-sent events of a job, read from its row: the table is the truth, the stream a convenience."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import structlog
from starlette.concurrency import run_in_threadpool

from api.context import ApiContext
from api.schemas.jobs import LIVE, JobOut
from models.errors import AppError
from models.principal import Principal
from models.use_cases.jobs import get_job

POLL_S = 0.5
KEEPALIVE_S = 15.0
LONGEST_S = 900.0
"""After this a stream ends and the client's EventSource opens a new one."""

log = structlog.get_logger(__name__)


async def job_events(context: ApiContext, principal: Principal, first: JobOut) -> AsyncIterator[str]:
    """Yields ``job`` events at each change of a job until it has ended; comments in between keep the line open."""
    shown = first.model_dump_json()
    yield f"retry: 2000\nevent: job\ndata: {shown}\n\n"
    status, started, spoke = first.status, time.monotonic(), time.monotonic()
    while status in LIVE and time.monotonic() - started < LONGEST_S:
        await anyio.sleep(POLL_S)
        try:
            job = await run_in_threadpool(_read, context, principal, first.id)
        except AppError as error:
            yield f"event: gone\ndata: {error.code}\n\n"
            return
        status, text = job.status, job.model_dump_json()
        if text != shown:
            shown, spoke = text, time.monotonic()
            yield f"event: job\ndata: {text}\n\n"
        elif time.monotonic() - spoke > KEEPALIVE_S:
            spoke = time.monotonic()
            yield ": still here\n\n"


def _read(context: ApiContext, principal: Principal, job_id: str) -> JobOut:
    with context.services.database.read() as session:
        return JobOut.of_detail(get_job(session, principal, job_id))
