"""The database's tables."""

from models.tables.base import Base, UtcDateTime
from models.tables.calibrations import CalibrationRow
from models.tables.catalogue import CatalogueEntry
from models.tables.jobs import JOB_KINDS, JOB_STATUSES, Job, JobFile, JobResult, Report, ReportCalibration, Worker
from models.tables.schedules import Schedule, ScheduleRun
from models.tables.tenancy import ApiKey, AuditEvent, IdempotencyKey, Tenant
from models.tables.traces import Blob, Trace

__all__ = [
    "JOB_KINDS",
    "JOB_STATUSES",
    "ApiKey",
    "AuditEvent",
    "Base",
    "Blob",
    "CalibrationRow",
    "CatalogueEntry",
    "IdempotencyKey",
    "Job",
    "JobFile",
    "JobResult",
    "Report",
    "ReportCalibration",
    "Schedule",
    "ScheduleRun",
    "Tenant",
    "Trace",
    "UtcDateTime",
    "Worker",
]
