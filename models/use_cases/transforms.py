"""A request's transform made ready for its trace: names as labels, further traces found, refused if it cannot fit."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.errors import ConflictError, InvalidError, NotFoundError
from models.principal import Principal
from models.services import Services
from models.tables import Trace
from models.use_cases.traces import get_ready_trace
from replay.errors import FieldError
from replay.planning.resolve import TraceRef
from replay.specs import Transform
from replay.traces.checks import check_transform, facts_of, mixed_facts
from replay.traces.labels import NO_LABEL, tenant_label
from replay.traces.report import IngestReport


@dataclass(frozen=True)
class ReadyTransform:
    """What a job is made of: the transform with labels and names, and its traces by content."""

    transform: Transform
    trace: TraceRef
    mixed: tuple[TraceRef, ...]


def ready_transform(
    session: Session, principal: Principal, services: Services, trace: Trace, transform: Transform
) -> ReadyTransform:
    """Checks ``transform`` against what is known of a ready trace and of those that it mixes in.

    Tenants may be named as the file named them; where the trace holds labels, the labels take their place.

    Raises:
        InvalidError: a trace to mix in is not there. ConflictError: it is not ready.
        TraceError: the traces have not what the transform asks of them.
    """
    others = mixed_traces(session, principal, transform)
    named = tuple(one.named(other.name or other.id) for one, other in zip(transform.mix_with, others, strict=True))
    transform = transform.model_copy(update={"mix_with": named})
    key = services.settings.id_key()
    hashed = {one.name: other.options.get("ids") == "hash" for one, other in zip(named, others, strict=True)}

    def label_of(name: str) -> str:
        part, slash, tenant = name.partition("/")
        if part in hashed:
            return f"{part}/{tenant_label(key, tenant)}" if slash and hashed[part] else name
        return name if name == NO_LABEL or trace.options.get("ids") != "hash" else tenant_label(key, name)

    parts = [(one, facts_of(_report(other))) for one, other in zip(named, others, strict=True)]
    facts = mixed_facts(facts_of(_report(trace)), parts, transform.mix_align)
    check_transform(transform, facts, label_of, services.settings.job_max_requests)
    labelled = {
        "tenants": tuple(map(label_of, transform.tenants)),
        "without_tenants": tuple(map(label_of, transform.without_tenants)),
        "tenant_growth": {label_of(name): factor for name, factor in transform.tenant_growth.items()},
    }
    mixed = tuple(trace_ref(other) for other in others)
    return ReadyTransform(transform.model_copy(update=labelled), trace_ref(trace), mixed)


def mixed_traces(session: Session, principal: Principal, transform: Transform) -> list[Trace]:
    """The ready traces that ``transform`` mixes in.

    Raises:
        InvalidError: one is not there. ConflictError: it is not ready.
    """
    return [_mixed_trace(session, principal, i, one.trace) for i, one in enumerate(transform.mix_with)]


def trace_ref(trace: Trace) -> TraceRef:
    """How a request names its trace: by content."""
    if trace.canonical_sha256 is None:
        raise ConflictError(f"the trace {trace.id} is {trace.status}", code="trace.not_ready")
    return TraceRef(sha256=trace.canonical_sha256, name=trace.name)


def _mixed_trace(session: Session, principal: Principal, number: int, trace_id: str) -> Trace:
    """Not locked: two requests that mix each other's traces would wait for each other. The file of a trace that is
    deleted meanwhile stays for the grace time of blobs."""
    try:
        return get_ready_trace(session, principal, trace_id)
    except NotFoundError:
        cure = "give the id of a ready trace, as GET /v1/traces lists them"
        detail = f"there is no trace {trace_id[:60]!r} to mix in; {cure}"
        fault = FieldError(detail, field=f"transform.mix_with.{number}.trace", rule="unknown_trace", cure=cure)
        raise InvalidError(detail, code="trace.unknown", errors=[fault]) from None


def _report(trace: Trace) -> IngestReport:
    return IngestReport.model_validate(trace.report)
