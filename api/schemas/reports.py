"""Reports in a list; a report itself is a ``capreplay.report/1`` document."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from api.schemas.common import Out
from models.tables import Report


class ReportSummary(Out):
    """A report's row. The document is at ``/v1/reports/{id}``."""

    id: str
    job_id: str
    kind: Literal["plan", "replay"]
    name: str
    trace_id: str | None
    document_sha256: str
    document_bytes: int
    requests_bytes: int | None
    """Size of the per-request table (Parquet); null for a plan."""
    created_at: datetime

    @classmethod
    def of(cls, row: Report) -> ReportSummary:
        """From the stored row."""
        return cls.model_validate({name: getattr(row, name) for name in cls.model_fields})
