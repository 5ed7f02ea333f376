"""Traces: what an upload became."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from api.schemas.common import Out
from models.tables import Trace
from replay.hardware.entries import ModelSpec
from replay.traces.report import CleaningReport, IngestReport, TraceProfile


class TraceOut(Out):
    """An uploaded trace. ``requests`` to ``span_s`` are null until it is ready."""

    id: str
    name: str
    stream: str | None
    status: Literal["ingesting", "ready", "failed"]
    source_sha256: str
    source_bytes: int
    canonical_sha256: str | None
    options: dict[str, Any]
    """How the file was to be read."""
    ingest_job_id: str
    """The job that cleans it; a failed one says why, with line, column and rule."""
    format: str | None
    requests: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    span_s: float | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: Trace) -> TraceOut:
        """From the stored row."""
        report = row.report or {}
        return cls.model_validate(
            {
                "id": row.id,
                "name": row.name,
                "stream": row.stream,
                "status": row.status,
                "source_sha256": row.source_sha256,
                "source_bytes": row.source_bytes,
                "canonical_sha256": row.canonical_sha256,
                "options": {name: value for name, value in row.options.items() if name != "limits"},
                "ingest_job_id": row.ingest_job_id,
                "created_at": row.created_at,
                "updated_at": row.updated_at,
                **{
                    name: report.get(name)
                    for name in ("format", "requests", "prompt_tokens", "output_tokens", "span_s")
                },
            }
        )


class CleaningReportOut(Out):
    """How the file was understood, and what became of each row: read = kept + rejected by reason."""

    trace_id: str
    format: str
    title: str
    why: str
    assumed: dict[str, str]
    warnings: list[str]
    cleaning: CleaningReport

    @classmethod
    def of(cls, row: Trace) -> CleaningReportOut:
        """From a ready trace."""
        report = IngestReport.model_validate(row.report)
        return cls(
            trace_id=row.id,
            format=report.format,
            title=report.title,
            why=report.why,
            assumed=report.assumed,
            warnings=report.warnings,
            cleaning=report.cleaning,
        )


class ModelFit(Out):
    """How many requests are longer than a model's context. At least and at most are equal where the model's context
    length is one of ``over_length``."""

    model: str
    max_model_len: int
    longer_at_least: int
    longer_at_most: int


class TraceProfileOut(Out):
    """What the traffic looks like."""

    trace_id: str
    profile: TraceProfile
    model_fit: ModelFit | None
    """For the model that was asked about."""

    @classmethod
    def of(cls, row: Trace, model: ModelSpec | None) -> TraceProfileOut:
        """From a ready trace, and a model that may be too short for it."""
        profile, fit = IngestReport.model_validate(row.report).profile, None
        if model is not None:
            at_least, at_most = profile.longer_than(model.max_position)
            fit = ModelFit(
                model=model.key,
                max_model_len=model.max_position,
                longer_at_least=at_least,
                longer_at_most=at_most,
            )
        return cls(trace_id=row.id, profile=profile, model_fit=fit)
