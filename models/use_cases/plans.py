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
from models.tables import Job, Trace
from models.use_cases.calibrations import calibrations_for
from models.use_cases.catalogue import catalogue_for
from models.use_cases.limits import check_live_jobs, check_stored_bytes
from models.use_cases.traces import get_ready_trace
from models.use_cases.transforms import mixed_traces, ready_transform
from replay.errors import FieldError
from replay.planning.resolve import ResolvedPlan, TraceRef, resolve_plan
from replay.specs import PlanSpec

MAX_CANDIDATES = 200
_NO_TRACE = TraceRef(sha256="0" * 64)


def resolved(
    session: Session, principal: Principal, services: Services, trace: Trace | None, spec: PlanSpec
) -> ResolvedPlan:
    """``spec`` with the tenant's catalogue and calibrations, checked against a ready trace; ``None``: it is not known
    yet, and what is asked of it is left unchecked. Its traces to mix in must be ready all the same.

    Raises:
        InvalidError, ConflictError, SpecError, TraceError: as ``start_plan``.
    """
    own = calibrations_for(session, principal, spec.calibration)
    if trace is None:
        mixed_traces(session, principal, spec.transform)
        at, mixed = _NO_TRACE, tuple[TraceRef, ...]()
    else:
        ready = ready_transform(session, principal, services, trace, spec.transform)
        spec = spec.model_copy(update={"transform": ready.transform})
        at, mixed = ready.trace, ready.mixed
    plan = resolve_plan(spec, catalogue_for(session, principal), trace=at, mixed=mixed, calibrations=own)
    count = len(plan.candidates())
    if count > MAX_CANDIDATES:
        detail = f"the plan has {count} candidates, more than {MAX_CANDIDATES}"
        cure = "name fewer GPU types or sizes"
        fault = FieldError(detail, field="gpus", rule="max_candidates", cure=cure)
        raise InvalidError(f"{detail}: {cure}", code="plan.too_many_candidates", errors=[fault])
    return plan


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
    plan = resolved(session, principal, services, trace, spec)
    candidates = plan.candidates()
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
