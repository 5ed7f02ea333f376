"""Start a replay of one deployment."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models import jobs
from models.hashing import canonical_json, code_version, input_hash, sha256_text
from models.jobs import StartedJob
from models.principal import Principal
from models.repositories import jobs as job_rows
from models.services import Services
from models.use_cases.calibrations import calibrations_for
from models.use_cases.catalogue import catalogue_for
from models.use_cases.limits import check_live_jobs, check_stored_bytes
from models.use_cases.traces import get_ready_trace
from models.use_cases.transforms import ready_transform
from replay.planning.resolve import resolve_replay
from replay.specs import ReplaySpec


def start_replay(
    session: Session,
    principal: Principal,
    services: Services,
    trace_id: str,
    spec: ReplaySpec,
    *,
    name: str = "",
    request_id: str | None = None,
) -> StartedJob:
    """Resolves ``spec`` with the tenant's catalogue and inserts the job, or finds an equal one.

    Raises NotFoundError, ConflictError (trace not ready), InvalidError, LimitError, and the domain's SpecError and
    TraceError.
    """
    principal.require("jobs:write")
    trace = get_ready_trace(session, principal, trace_id, lock=True)
    own = calibrations_for(session, principal, spec.calibration)
    ready = ready_transform(session, principal, services, trace, spec.transform)
    spec = spec.model_copy(update={"transform": ready.transform})
    catalogue = catalogue_for(session, principal)
    replay = resolve_replay(spec, catalogue, trace=ready.trace, mixed=ready.mixed, calibrations=own)
    document = {
        "schema_version": 1,
        "replay": replay.model_dump(mode="json"),
        "name": name,
        "trace_id": trace.id,
        "canonical_sha256": trace.canonical_sha256,
        "ingest_report_sha256": sha256_text(canonical_json(trace.report)),
    }
    hashed = input_hash(
        "replay", {name: value for name, value in document.items() if name != "trace_id"}, code_version()
    )
    if (found := job_rows.find_shared(session, principal.tenant_id, hashed)) is not None:
        return StartedJob(found, created=False)
    check_live_jobs(session, principal, services)
    check_stored_bytes(session, principal, services)
    job = jobs.new_job(
        tenant_id=principal.tenant_id,
        kind="replay",
        name=name,
        spec=document,
        input_hash=hashed,
        code_version=code_version(),
        settings=services.settings,
        now=services.clock(),
        trace_id=trace.id,
        request_id=request_id,
    )
    return jobs.create(session, job)
