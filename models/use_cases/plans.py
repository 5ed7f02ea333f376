"""Start a plan: a parent job and one child for each candidate."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from models import jobs
from models.errors import InvalidError
from models.hashing import canonical_json, code_version, input_hash, sha256_text
from models.jobs import StartedJob
from models.principal import Principal
from models.repositories import jobs as job_rows
from models.services import Services
from models.tables import Job
from models.use_cases.calibrations import calibrations_for
from models.use_cases.catalogue import catalogue_for
from models.use_cases.limits import check_live_jobs, check_stored_bytes
from models.use_cases.traces import get_ready_trace
from models.use_cases.transforms import ready_transform
from replay.planning.resolve import resolve_plan
from replay.specs import PlanSpec

MAX_CANDIDATES = 200


def start_plan(
    session: Session,
    principal: Principal,
    services: Services,
    trace_id: str,
    spec: PlanSpec,
    *,
    schedule_id: str | None = None,
    request_id: str | None = None,
) -> StartedJob:
    """Resolves ``spec`` with the tenant's catalogue and inserts parent and children in this transaction.

    ``StartedJob(job, created)``: not created where an equal plan, then ``job``, is live or has
    succeeded.
    Raises NotFoundError, ConflictError (trace not ready), InvalidError, LimitError, and the domain's SpecError and
    TraceError.
    """
    principal.require("jobs:write")
    trace = get_ready_trace(session, principal, trace_id, lock=True)
    own = calibrations_for(session, principal, spec.calibration)
    ready = ready_transform(session, principal, services, trace, spec.transform)
    spec = spec.model_copy(update={"transform": ready.transform})
    catalogue = catalogue_for(session, principal)
    plan = resolve_plan(spec, catalogue, trace=ready.trace, mixed=ready.mixed, calibrations=own)
    candidates = plan.candidates()
    if len(candidates) > MAX_CANDIDATES:
        raise InvalidError(
            f"the plan has {len(candidates)} candidates, more than {MAX_CANDIDATES}: name fewer GPU types or sizes",
            code="plan.too_many_candidates",
        )
    document = {
        "schema_version": 1,
        "plan": plan.model_dump(mode="json"),
        "trace_id": trace.id,
        "canonical_sha256": trace.canonical_sha256,
        "ingest_report_sha256": sha256_text(canonical_json(trace.report)),
    }
    hashed = input_hash("plan", {name: value for name, value in document.items() if name != "trace_id"}, code_version())
    if (found := job_rows.find_shared(session, principal.tenant_id, hashed)) is not None:
        return StartedJob(found, created=False)
    check_live_jobs(session, principal, services)
    check_stored_bytes(session, principal, services)
    now = services.clock()

    def new(kind: str, **values: Any) -> Job:
        return jobs.new_job(
            tenant_id=principal.tenant_id,
            kind=kind,
            code_version=code_version(),
            settings=services.settings,
            now=now,
            trace_id=trace.id,
            schedule_id=schedule_id,
            request_id=request_id,
            **values,
        )

    count = len(candidates)
    parent = new("plan", name=spec.name, spec=document, input_hash=hashed, children=count, remaining=count)
    children = [
        new(
            "plan_candidate",
            name=f"{candidate.gpu_key} tp{candidate.tp}",
            spec={"schema_version": 1, "gpu_key": candidate.gpu_key, "tp": candidate.tp},
        )
        for candidate in candidates
    ]
    return jobs.create(session, parent, children)
