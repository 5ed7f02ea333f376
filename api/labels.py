"""What a job is about, in a few words: lists are told apart by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.tables import Job


def about(job: Job | None) -> str:
    """``Llama-3.1-8B on H100-SXM, L40S; trace chat.csv`` of a plan or a replay, with files of a calibration; empty
    for others."""
    spec = (job.spec or {}).get(job.kind) if job is not None else None
    if not isinstance(spec, dict):
        return ""
    gpus = [gpu["key"] for gpu in spec.get("gpus") or [spec["gpu"]]]
    shown = ", ".join(gpus[:4]) + (", ..." if len(gpus) > 4 else "")
    trace = spec.get("trace", {}).get("name")
    files = ", ".join(file["name"] for file in spec.get("files", ())[:3])
    return (
        f"{spec['model']['key']} on {shown}" + (f"; trace {trace}" if trace else "") + (f"; {files}" if files else "")
    )
